//! Paths in [`Files`](super::Files): segments between `/`, none of them empty, `.` or `..`.

/// Resolves a path relative to a folder; `None` if the path leads out of the top folder.
pub(super) fn join(folder: &str, path: &str) -> Option<String> {
    let mut segments: Vec<&str> = folder.split('/').filter(|segment| !segment.is_empty()).collect();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop()?;
            }
            segment => segments.push(segment),
        }
    }
    Some(segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_resolved_relative_to_a_folder_and_never_leave_the_top() {
        for (folder, path, expected) in [
            ("", "./a", Some("a")),
            ("a/b", "../c", Some("a/c")),
            ("a/b", "../../c//d/./", Some("c/d")),
            ("a", "../", Some("")),
            ("a", "..", Some("")),
            ("", "/a", Some("a")),
            ("a", "../..", None),
            ("a", "../../a", None),
        ] {
            assert_eq!(join(folder, path).as_deref(), expected, "{folder} {path}");
        }
    }
}
