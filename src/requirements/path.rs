//! Paths in [`Files`](super::Files): segments between `/`, none of them empty, `.` or `..`.

/// Resolves a path relative to a folder; `None` where it leads out of the top.
pub(super) fn join(from: &str, path: &str) -> Option<String> {
    let mut folder: Vec<&str> = from.split('/').filter(|segment| !segment.is_empty()).collect();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                folder.pop()?;
            }
            segment => folder.push(segment),
        }
    }
    Some(folder.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_on_from_a_folder_and_never_out_of_the_top() {
        for (from, path, to) in [
            ("", "./a", Some("a")),
            ("a/b", "../c", Some("a/c")),
            ("a/b", "../../c//d/./", Some("c/d")),
            ("a", "../", Some("")),
            ("a", "..", Some("")),
            ("", "/a", Some("a")),
            ("a", "../..", None),
            ("a", "../../a", None),
        ] {
            assert_eq!(join(from, path).as_deref(), to, "{from} {path}");
        }
    }
}
