//! Completions and manual pages: real shells and real readers of roff take them, and they have every command and option.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::larder::Folder;
use crate::support::process::{CommandOutput, command, run};
use crate::support::programs::find;

/// Each command line of larder (`larder`, `larder bundle create`) with its options and its subcommands, as its help has them.
async fn commands(home: &Path) -> BTreeMap<String, HelpWords> {
    let mut commands = BTreeMap::new();
    let mut waiting = vec!["larder".to_owned()];
    while let Some(path) = waiting.pop() {
        let mut words: Vec<&str> = path.split(' ').skip(1).collect();
        words.push("-h");
        let output = run(command(home, &words)).await;
        assert_eq!(output.code, Some(0), "{path}: {output:?}");
        let words = HelpWords::of(&output.out);
        waiting.extend(words.subcommands.iter().map(|name| format!("{path} {name}")));
        commands.insert(path, words);
    }
    assert!(commands.len() > 20 && commands.contains_key("larder bundle create"), "{commands:?}");
    commands
}

#[derive(Debug)]
struct HelpWords {
    options: BTreeSet<String>,
    subcommands: BTreeSet<String>,
}

impl HelpWords {
    /// Reads the short help: a line of an option begins with a dash, a line of a subcommand has two spaces before its name.
    fn of(help: &str) -> Self {
        let (mut options, mut subcommands) = (BTreeSet::new(), BTreeSet::new());
        for line in help.lines() {
            let is_letter = |c: char| c.is_ascii_lowercase() || c == '-';
            if line.trim_start().starts_with('-') {
                let long = line.split([' ', ',']).find(|word| word.starts_with("--")).unwrap();
                options.insert(long.chars().take_while(|&c| is_letter(c)).collect());
            } else if let Some(rest) = line.strip_prefix("  ") {
                let name: String = rest.chars().take_while(|&c| is_letter(c)).collect();
                if !name.is_empty() && name != "help" && rest[name.len()..].starts_with("  ") {
                    subcommands.insert(name);
                }
            }
        }
        Self { options, subcommands }
    }
}

/// Writes the completions of a shell into a file.
async fn completions(folder: &Folder, shell: &str) -> PathBuf {
    let output = run(command(folder.path(), &["completions", shell])).await;
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{shell}");
    let file = folder.path().join(shell);
    std::fs::write(&file, output.out).unwrap();
    file
}

/// Runs a real program without the settings of this user.
async fn run_program(program: &Path, home: &Path, arguments: &[&str]) -> CommandOutput {
    let mut command = Command::new(program);
    command.args(arguments).env("HOME", home).env("LC_ALL", "C.UTF-8").env("MANWIDTH", "80");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    run(command).await
}

fn lines(output: &CommandOutput) -> BTreeSet<String> {
    output.out.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn bash_completes_every_command_and_every_option() {
    const COMPLETE: &str = r#"source "$0" && COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) &&
        _larder larder "${@: -1}" "${@: -2:1}" && printf '%s\n' "${COMPREPLY[@]}" && complete -p larder"#;
    let Some(bash) = find("bash") else { return };
    let folder = Folder::new();
    let script = completions(&folder, "bash").await;
    let complete = async |line: &str| {
        let arguments = ["--norc", "-c", COMPLETE, script.to_str().unwrap()];
        let arguments: Vec<&str> = arguments.into_iter().chain(line.split(' ')).collect();
        let output = run_program(&bash, folder.path(), &arguments).await;
        assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{line}");
        assert!(output.out.contains("-F _larder larder"), "{output:?}");
        lines(&output)
    };
    for (path, words) in commands(folder.path()).await {
        let offered = complete(&format!("{path} --")).await;
        assert!(words.options.is_subset(&offered), "{path}: {words:?}, not {offered:?}");
        let offered = complete(&format!("{path} ")).await;
        assert!(words.subcommands.is_subset(&offered), "{path}: {words:?}, not {offered:?}");
    }
    assert!(complete("larder completions po").await.contains("powershell"));
    assert!(complete("larder plan --client ").await.contains("opentofu"));
}

#[tokio::test]
async fn fish_completes_every_command_and_every_option() {
    let Some(fish) = find("fish") else { return };
    let folder = Folder::new();
    let script = completions(&folder, "fish").await;
    let complete = async |line: &str| {
        let arguments = ["--no-config", "-c", "source $argv[1]; complete -C $argv[2]", script.to_str().unwrap(), line];
        let output = run_program(&fish, folder.path(), &arguments).await;
        assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{line}");
        lines(&output)
    };
    for (path, words) in commands(folder.path()).await {
        let offered = complete(&format!("{path} --")).await;
        assert!(words.options.is_subset(&offered), "{path}: {words:?}, not {offered:?}");
        let offered = complete(&format!("{path} ")).await;
        assert!(words.subcommands.is_subset(&offered), "{path}: {words:?}, not {offered:?}");
    }
}

#[tokio::test]
async fn zsh_loads_its_completions() {
    const LOAD: &str =
        "autoload -Uz compinit && compinit -u -D && source $1 && print -r -- $_comps[larder] $+functions[_larder]";
    let Some(zsh) = find("zsh") else { return };
    let folder = Folder::new();
    let script = completions(&folder, "zsh").await;
    let output = run_program(&zsh, folder.path(), &["-f", "-c", LOAD, "zsh", script.to_str().unwrap()]).await;
    assert_eq!((output.out.as_str(), output.err.as_str()), ("_larder 1\n", ""));
    let text = std::fs::read_to_string(&script).unwrap();
    assert!(text.starts_with("#compdef larder\n"), "{text}");
}

/// PowerShell and zsh need a terminal to complete anything, so their scripts are read.
#[tokio::test]
async fn scripts_of_all_shells_have_every_command_and_every_option() {
    let folder = Folder::new();
    let commands = commands(folder.path()).await;
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let text = std::fs::read_to_string(completions(&folder, shell).await).unwrap();
        for words in commands.values() {
            for option in &words.options {
                let name = if shell == "fish" { format!("-l {}", &option[2..]) } else { option.clone() };
                assert!(text.contains(&name), "{shell}: {option}");
            }
            words.subcommands.iter().for_each(|name| assert!(text.contains(name.as_str()), "{shell}: {name}"));
        }
        let output = run(command(folder.path(), &["completions", shell, "--json"])).await;
        let json: Value = serde_json::from_str(&output.out).unwrap();
        assert_eq!((json["shell"].as_str(), json["script"].as_str()), (Some(shell), Some(text.as_str())));
    }
    let output = run(command(folder.path(), &["completions", "tcsh"])).await;
    assert!(output.code == Some(2) && output.err.contains("bash, zsh, fish, powershell"), "{output:?}");
}

/// Writes the manual pages into a new folder below the given one; returns them by file name.
async fn manual_pages(folder: &Folder) -> BTreeMap<String, PathBuf> {
    let out = folder.path().join("share/man/man1");
    let output = run(command(folder.path(), &["man", "--out", out.to_str().unwrap()])).await;
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""));
    let files = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path)).collect()
}

#[tokio::test]
async fn every_command_has_a_manual_page_with_all_its_options() {
    let folder = Folder::new();
    let (commands, mut pages) = (commands(folder.path()).await, manual_pages(&folder).await);
    for (path, words) in commands {
        let name = path.replace(' ', "-");
        let page = pages.remove(&format!("{name}.1")).unwrap_or_else(|| panic!("{name} has no page"));
        let text = std::fs::read_to_string(page).unwrap().replace("\\-", "-");
        assert!(text.contains(&format!("\n.TH {name} 1 ")) && text.contains(&format!("\n{name} - ")), "{text}");
        for option in &words.options {
            assert!(text.contains(&format!("\\fB{option}\\fR")), "{name}: {option}: {text}");
        }
        for subcommand in &words.subcommands {
            assert!(text.contains(&format!("{name}-{subcommand}(1)")), "{name}: {subcommand}: {text}");
        }
        assert!(text.contains(".SH EXAMPLES\n"), "{text}");
    }
    assert!(pages.is_empty(), "pages of no command: {pages:?}");
}

#[tokio::test]
async fn readers_of_manual_pages_find_nothing_to_complain_about() {
    let folder = Folder::new();
    let pages = manual_pages(&folder).await;
    let readers: [(&str, &[&str]); 2] = [
        ("man", &["--warnings", "--encoding=UTF-8", "--troff-device=utf8", "--ditroff", "--local-file"]),
        ("mandoc", &["-T", "lint", "-W", "warning"]),
    ];
    for (program, arguments) in readers {
        let Some(program) = find(program) else { continue };
        for page in pages.values() {
            let arguments: Vec<&str> = arguments.iter().copied().chain([page.to_str().unwrap()]).collect();
            let output = run_program(&program, folder.path(), &arguments).await;
            let complaints = format!("{}{}", output.err, if program.ends_with("mandoc") { &output.out } else { "" });
            // The pages have no date, and the generator spaces lists of values with two macros.
            let is_known = |line: &str| line.contains("missing date") || line.contains("skipping paragraph macro");
            let complaints: Vec<&str> = complaints.lines().filter(|line| !is_known(line)).collect();
            assert!(complaints.is_empty(), "{}: {complaints:?}", page.display());
        }
    }
}

#[tokio::test]
async fn larders_own_page_is_printed_and_a_folder_that_cannot_be_made_is_named() {
    let folder = Folder::new();
    let printed = run(command(folder.path(), &["man"])).await;
    let pages = manual_pages(&folder).await;
    assert_eq!(printed.out.trim_end(), std::fs::read_to_string(&pages["larder.1"]).unwrap().trim_end());
    for section in ["ENVIRONMENT", "FILES", "EXIT STATUS"] {
        assert!(
            printed.out.contains(&format!(".SH {section}\n").replace("EXIT STATUS", "\"EXIT STATUS\"")),
            "{section}"
        );
    }
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let below = file.join("man1");
    let output = run(command(folder.path(), &["man", "--out", below.to_str().unwrap()])).await;
    let expected = format!("larder: {} cannot be created: Not a directory", below.display());
    assert!(output.code == Some(1) && output.err.starts_with(&expected), "{output:?}");
}
