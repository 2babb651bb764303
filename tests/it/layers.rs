//! The arrows of ARCHITECTURE.md: no file names what is above it. Folders are layers, and the folders of `mirror/` are rooms; what
//! each may name is in `layers.txt`, from the lowest to the highest. Uses and qualified calls count; unit tests may name anything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The layers and rooms that each may name: they stand before it, so that no arrow runs up.
fn allowed() -> BTreeMap<String, BTreeSet<String>> {
    let text = std::fs::read_to_string(root().join("tests/it/layers.txt")).unwrap();
    let mut allowed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (from, to) = line.split_once(':').unwrap_or_else(|| panic!("{line}: no colon"));
        let to: BTreeSet<String> = to.split_whitespace().map(str::to_owned).collect();
        let above: Vec<&String> = to.iter().filter(|to| !allowed.contains_key(*to)).collect();
        assert!(above.is_empty(), "{from} may not name {above:?}, which do not stand before it");
        assert!(allowed.insert(from.to_owned(), to).is_none(), "{from} twice");
    }
    allowed
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => rust_files(&path, files),
            false if path.extension().is_some_and(|extension| extension == "rs") => files.push(path),
            false => {}
        }
    }
}

/// The source without comments and without the contents of strings: what names something.
fn code(source: &str) -> String {
    let (mut code, mut rest) = (String::new(), source);
    while let Some(at) = rest.find(['"', '/', '\'']) {
        let (before, from) = rest.split_at(at);
        code.push_str(before);
        rest = if from.starts_with("//") {
            &from[from.find('\n').unwrap_or(from.len())..]
        } else if let Some(inside) = from.strip_prefix('"') {
            let hashes = before.len() - before.trim_end_matches('#').len();
            if before.trim_end_matches('#').ends_with('r') {
                let end = format!("\"{}", "#".repeat(hashes));
                inside.split_once(&end).map_or("", |(_, after)| after)
            } else {
                let mut escaped = false;
                let end = inside.find(|c| {
                    let ends = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    ends
                });
                end.map_or("", |end| &inside[end + 1..])
            }
        } else if let Some(after) = from.strip_prefix("'\"'").or_else(|| from.strip_prefix("'\\\"'")) {
            after
        } else {
            code.push_str(&from[..1]);
            &from[1..]
        };
    }
    code + rest
}

/// The paths below `crate` that the source of the module `own` names: `crate::a::b`, also out of `use crate::a::{b, c::{d}}`, and
/// `super::b`.
fn named_paths(code: &str, own: &[String]) -> Vec<Vec<String>> {
    let absolute = code.match_indices("crate::").flat_map(|(at, start)| branches(&code[at + start.len()..]).0);
    let first = code.match_indices("super::").filter(|(at, _)| !code[..*at].ends_with("super::"));
    let relative = first.flat_map(|(at, _)| {
        let (mut rest, mut parent) = (&code[at..], own);
        while let Some(deeper) = rest.strip_prefix("super::") {
            (rest, parent) = (deeper, parent.split_last().map_or(parent, |(_, parent)| parent));
        }
        branches(rest).0.into_iter().map(|path| [parent, &path].concat()).collect::<Vec<_>>()
    });
    absolute.chain(relative).collect()
}

/// The branches of the tree of a use that begins here, and what follows it.
fn branches(text: &str) -> (Vec<Vec<String>>, &str) {
    let text = text.trim_start();
    if let Some(mut inner) = text.strip_prefix('{') {
        let mut all = Vec::new();
        loop {
            let (some, rest) = branches(inner);
            all.extend(some);
            let mut rest = rest.trim_start();
            if let Some(alias) = rest.strip_prefix("as ") {
                rest = alias.trim_start().trim_start_matches(|c: char| c.is_alphanumeric() || c == '_').trim_start();
            }
            match rest.strip_prefix(',') {
                Some(rest) => inner = rest,
                None => {
                    let end = rest.strip_prefix('}').unwrap_or_else(|| panic!("a group of names ends with {rest:.40}"));
                    return (all, end);
                }
            }
            if let Some(rest) = inner.trim_start().strip_prefix('}') {
                return (all, rest);
            }
        }
    }
    if let Some(rest) = text.strip_prefix('*') {
        return (vec![vec!["*".to_owned()]], rest);
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    match rest.strip_prefix("::") {
        Some(deeper) if deeper.trim_start().starts_with(|c: char| c.is_alphabetic() || "{_*".contains(c)) => {
            let (some, rest) = branches(deeper);
            let with_name = some.into_iter().map(|path| [vec![name.to_owned()], path].concat());
            (with_name.collect(), rest)
        }
        _ => (vec![vec![name.to_owned()]], rest),
    }
}

/// The definitions of the names that `mirror/mod.rs` hands on: the path of each below `crate`.
fn handed_on() -> BTreeMap<String, Vec<String>> {
    let facade = code(&std::fs::read_to_string(root().join("src/mirror/mod.rs")).unwrap());
    let facade = facade.replace("self::", "crate::mirror::");
    named_paths(&facade, &["mirror".to_owned()]).into_iter().map(|path| (path.last().unwrap().clone(), path)).collect()
}

fn is_layer(name: &str) -> bool {
    let source = root().join("src").join(name);
    source.is_dir() || source.with_extension("rs").is_file()
}

/// A folder of `mirror/` is a room. The files beside them are one more, the lowest.
fn room_of(name: &str) -> String {
    let is_folder = root().join("src/mirror").join(name).is_dir();
    format!("mirror/{}", if is_folder { name } else { "runtime" })
}

/// The layer of a path below `crate`, or the room below `mirror`. `None` for `mirror` alone: a visibility.
fn place(path: &[String]) -> Option<String> {
    match path {
        [layer, room, ..] if layer == "mirror" => Some(room_of(room)),
        [layer] if layer == "mirror" => None,
        [layer, ..] => Some(layer.clone()),
        [] => None,
    }
}

#[test]
fn no_file_names_what_is_above_it() {
    let (allowed, handed_on) = (allowed(), handed_on());
    let mut files = Vec::new();
    rust_files(&root().join("src"), &mut files);
    let mut found: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for file in &files {
        let relative = file.strip_prefix(root().join("src")).unwrap().with_extension("");
        if relative.iter().any(|part| part == "tests") {
            continue;
        }
        let mut own: Vec<String> = relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if matches!(own.last().map(String::as_str), Some("mod")) {
            own.pop();
        }
        if own == ["lib"] || own == ["main"] {
            continue;
        }
        let module = own;
        // The facade stands above its rooms.
        let own = place(&module).unwrap_or_else(|| "mirror".to_owned());
        let source = std::fs::read_to_string(file).unwrap();
        let without_tests = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for path in named_paths(&code(without_tests), &module) {
            // `super` in a module within the file may lead to the file itself.
            if !is_layer(&path[0]) {
                continue;
            }
            let resolved = match &path[..] {
                [layer, name, ..] if layer == "mirror" => handed_on.get(name).unwrap_or(&path),
                _ => &path,
            };
            // From outside, the rooms are one layer.
            let named = if own.starts_with("mirror") { place(resolved) } else { Some(path[0].clone()) };
            let Some(named) = named.filter(|named| *named != own) else { continue };
            let line = format!("{} names crate::{}", relative.display(), path.join("::"));
            found.entry((own.clone(), named)).or_default().insert(line);
        }
    }
    let wrong: Vec<String> = found
        .iter()
        .filter(|((from, to), _)| !allowed.get(from).is_some_and(|to_all| to_all.contains(to)))
        .map(|((from, to), lines)| {
            format!("{from} -> {to}\n    {}", lines.iter().cloned().collect::<Vec<_>>().join("\n    "))
        })
        .collect();
    assert!(wrong.is_empty(), "not in layers.txt:\n{}", wrong.join("\n"));
    let unused: Vec<String> = allowed
        .iter()
        .flat_map(|(from, to)| to.iter().map(move |to| (from.clone(), to.clone())))
        .filter(|pair| !found.contains_key(pair))
        .map(|(from, to)| format!("{from}: {to}"))
        .collect();
    assert!(unused.is_empty(), "in layers.txt, and used by nobody: {unused:?}");
}

/// The check sees what it must see.
#[test]
fn the_paths_of_a_source_are_found() {
    let source = "use crate::a::{b, c::{d, e}};\n// crate::comment::x\nlet text = \"crate::string::y\"; let raw = r#\"crate::raw::z\"#;\n\
                  let quote = '\"'; use crate::{k as l, m::*, n::{self, O as P}, q}; crate::f::g(h); fn x(y: &crate::i::J) {}\n\
                  use super::{r, super_s}; super::super::t::u();";
    let own = ["x", "y", "z"].map(str::to_owned);
    let paths: Vec<String> = named_paths(&code(source), &own).into_iter().map(|path| path.join("::")).collect();
    assert_eq!(
        paths,
        [
            "a::b",
            "a::c::d",
            "a::c::e",
            "k",
            "m::*",
            "n::self",
            "n::O",
            "q",
            "f::g",
            "i::J",
            "x::y::r",
            "x::y::super_s",
            "x::t::u"
        ]
    );
}
