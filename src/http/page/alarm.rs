//! The text about an alarm: what happened, why it matters, what clients get meanwhile, and what can be
//! done, with the command and the button for each.

use super::Moment;
use super::status::without_host;
use crate::address::Hostname;
use crate::clock::Timestamp;
use crate::mirror::{Alarm, AlarmKind};
use crate::protocol::admin::Operation;
use crate::wording::escape_invisible;

/// The fixed texts of a kind of alarm.
pub(super) struct AlarmText {
    pub(super) heading: &'static str,
    pub(super) happened: &'static str,
    pub(super) matters: &'static str,
    pub(super) clients_get: &'static str,
    choices: &'static [ChoiceText],
}

/// One thing that can be done.
pub(super) struct ChoiceText {
    /// When this is the right choice.
    pub(super) when: &'static str,
    /// The effect.
    pub(super) effect: &'static str,
    /// Its command; `None` for something that happens elsewhere, or for waiting.
    operation: Option<Operation>,
}

const fn choice(when: &'static str, effect: &'static str, operation: Option<Operation>) -> ChoiceText {
    ChoiceText { when, effect, operation }
}

const ASK_PUBLISHER: ChoiceText = choice(
    "You do not know yet",
    "Compare the evidence with the publisher's release notes, or ask the publisher. Nothing changes meanwhile.",
    None,
);

/// Explains a kind of alarm.
fn explanation(kind: AlarmKind) -> AlarmText {
    const ACCEPT: Option<Operation> = Some(Operation::Accept);
    const REFRESH: Option<Operation> = Some(Operation::Refresh);
    match kind {
        AlarmKind::WaitsForAccept => AlarmText {
            heading: "It changed after its release, and the change is refused",
            happened: "The registry offers other files for this version than the ones that larder verified first. No key that may vouch for such a change has signed them.",
            matters: "A released version should never change. Either its publisher released it again, or somebody else put other files in its place.",
            clients_get: "The files that larder stored first. Where none are stored, an error (502) that says why.",
            choices: const {
                &[
                    ASK_PUBLISHER,
                    choice(
                        "The publisher confirms the change",
                        "larder verifies the new checksums now, and fetches each file when a client asks for it. The key that signed them counts for this version and for later ones. Lock files with the old hashes refuse the new files until they are updated.",
                        ACCEPT,
                    ),
                    choice(
                        "The publisher took the change back",
                        "larder asks the registry again. If the first files are back, this alarm ends.",
                        REFRESH,
                    ),
                ]
            },
        },
        AlarmKind::Republished => AlarmText {
            heading: "It changed after its release, and the change is served",
            happened: "The registry offers other files for this version than before. A key that vouched for the version already has signed them.",
            matters: "Lock files with the old hashes refuse the new files, so terraform init fails for those configurations. If the publisher knows nothing of the change, the key may be in the wrong hands.",
            clients_get: "The new files.",
            choices: const {
                &[
                    ASK_PUBLISHER,
                    choice("The publisher confirms the change", "This alarm ends. Nothing else changes.", ACCEPT),
                ]
            },
        },
        AlarmKind::Moved => AlarmText {
            heading: "The module version moved, and its new contents are refused",
            happened: "The tag or the archive of this module version leads to other contents than when larder first saw it.",
            matters: "A tag that moves changes what your configurations run, without a new version number.",
            clients_get: "The first contents, as long as they are stored. Otherwise an error (502) that says why.",
            choices: const {
                &[
                    choice(
                        "You do not know yet",
                        "Compare the two commits, or ask the module's author. Nothing changes meanwhile.",
                        None,
                    ),
                    choice(
                        "You reviewed the new contents and want them",
                        "larder serves them from then on. Module sources with the old checksum refuse them.",
                        ACCEPT,
                    ),
                    choice(
                        "The author moved the tag back",
                        "larder asks the registry again. If it leads to the first contents, this alarm ends.",
                        REFRESH,
                    ),
                ]
            },
        },
        AlarmKind::NewKey => AlarmText {
            heading: "A new key signed it, and it is served",
            happened: "A key that never signed for this provider has signed this version. The registry lists the key, so larder takes it for new versions.",
            matters: "Publishers do change their keys, and say so. If this one did not, somebody else may publish in its name. For earlier versions the key vouches for nothing.",
            clients_get: "What the new key signed.",
            choices: const {
                &[
                    choice(
                        "You do not know yet",
                        "Look for the key's fingerprint on the publisher's own pages. Until you know, exclude this version in your constraints with !=.",
                        None,
                    ),
                    choice(
                        "The publisher announced the key",
                        "From then on the key is known for the provider, and this alarm ends.",
                        ACCEPT,
                    ),
                ]
            },
        },
        AlarmKind::SignatureLost => AlarmText {
            heading: "It is no longer signed, and new files are refused",
            happened: "The registry lists no signing key for this provider any more. Its earlier versions were signed.",
            matters: "Without a signature nothing proves that files come from the publisher. Somebody who takes over an account would leave the signature out.",
            clients_get: "Everything that is stored. For all else, an error (502) that says why.",
            choices: const {
                &[
                    ASK_PUBLISHER,
                    choice(
                        "The publisher stopped signing on purpose",
                        "larder takes unsigned files of this provider from then on.",
                        ACCEPT,
                    ),
                    choice(
                        "The registry has repaired it",
                        "larder asks the registry again. If the files are signed, this alarm ends.",
                        REFRESH,
                    ),
                ]
            },
        },
        AlarmKind::Dropped => AlarmText {
            heading: "The registry withdrew it, and it is still served",
            happened: "The registry no longer lists this version. larder has it stored, and keeps listing it.",
            matters: "Publishers withdraw versions that are broken or unsafe. Configurations that need this one work for as long as larder stores it.",
            clients_get: "The stored version.",
            choices: const {
                &[
                    choice(
                        "You still need it",
                        "larder never evicts it. This alarm stays as a reminder.",
                        Some(Operation::Pin),
                    ),
                    choice(
                        "Nobody should use it any more",
                        "larder removes what it has stored of it. Clients then get the registry's answer, which is that it does not exist.",
                        Some(Operation::Purge),
                    ),
                    choice("The registry lists it again", "This alarm ends when larder next reads the list.", REFRESH),
                ]
            },
        },
        AlarmKind::DamagedRecord => AlarmText {
            heading: "Its history cannot be read, and new files are refused",
            happened: "The record of what this version was when it was first verified is damaged, and nothing that is stored can rebuild it.",
            matters: "Without that record larder cannot tell whether the registry still offers the same files. The usual cause is a failing disk.",
            clients_get: "What is stored. For all else, an error (502) that says why.",
            choices: const {
                &[
                    choice(
                        "You do not know yet",
                        "Look after the disk first: larder verify reads everything that is stored.",
                        None,
                    ),
                    choice(
                        "You trust what the registry offers now",
                        "larder verifies it, and records it as the first version seen.",
                        ACCEPT,
                    ),
                ]
            },
        },
        AlarmKind::ImportedDiffers => AlarmText {
            heading: "It differs from what was imported, and the registry's files are served",
            happened: "This package was imported without a signature. The registry has other files for it, and they verify.",
            matters: "The imported files may have been built elsewhere, or altered on their way. Lock files made with them refuse the registry's.",
            clients_get: "The registry's files.",
            choices: const {
                &[
                    choice("You do not know yet", "Ask whoever made the import where its files came from.", None),
                    choice("You know where the import came from", "This alarm ends. Nothing else changes.", ACCEPT),
                ]
            },
        },
    }
}

/// An alarm on the page.
pub(super) struct AlarmView {
    pub(super) name: String,
    pub(super) is_refusal: bool,
    pub(super) text: AlarmText,
    /// Each fact for itself.
    pub(super) evidence: Vec<String>,
    pub(super) since: Moment,
    pub(super) choices: Vec<Choice>,
}

/// Something that can be done about an alarm.
pub(super) struct Choice {
    pub(super) text: &'static ChoiceText,
    /// The command; empty if there is none.
    pub(super) command: String,
    /// The text of the button; empty if there is none.
    pub(super) button: String,
    /// The value of the button: the operation and its address. That of `accept` has the evidence of the page, too.
    pub(super) value: String,
    /// True for the button that ends the alarm.
    pub(super) is_decision: bool,
}

impl AlarmView {
    pub(super) fn has_button(&self) -> bool {
        self.choices.iter().any(|choice| !choice.button.is_empty())
    }

    /// An alarm as it is shown. Offline, `accept` comes with a bundle, and a button cannot bring one.
    pub(super) fn of(alarm: &Alarm, default_host: &Hostname, offline: bool, now: Timestamp) -> Self {
        let Alarm { kind, address, version, detail, since, resolve, evidence } = alarm;
        let text = explanation(*kind);
        let choices = text.choices.iter().map(|text| {
            let nothing = Choice {
                text,
                command: String::new(),
                button: String::new(),
                value: String::new(),
                is_decision: false,
            };
            let Some(operation) = text.operation else { return nothing };
            let command = match (operation, resolve) {
                (Operation::Accept, Some(resolve)) => escape_invisible(resolve),
                (operation, _) => format!("larder {} {address}@{version}", operation.label()),
            };
            // Offline it is another command, and asking upstream is refused.
            let value = command.strip_prefix("larder ").filter(|value| value.starts_with(operation.label()));
            let has_button = value.is_some() && !(offline && operation == Operation::Refresh);
            // The command may be about the whole provider.
            let target = value.and_then(|value| value.split_once(' ')).map_or("", |(_, target)| target);
            let value = match operation {
                Operation::Accept if value.is_some() => match evidence {
                    Some(evidence) => format!("accept:{evidence} {target}"),
                    None => format!("accept {target}"),
                },
                _ => value.unwrap_or_default().to_owned(),
            };
            let target = without_host(target, default_host).replace('@', " ");
            let button = if has_button { format!("{} {target}", verb(operation)) } else { String::new() };
            Choice {
                command,
                button,
                value,
                is_decision: matches!(operation, Operation::Accept | Operation::Purge),
                ..nothing
            }
        });
        Self {
            name: escape_invisible(&format!("{} {version}", without_host(address, default_host))),
            is_refusal: kind.refuses(),
            evidence: detail
                .split("; ")
                .map(escape_invisible)
                .chain(evidence.as_ref().map(|evidence| format!("evidence {evidence}")))
                .collect(),
            since: Moment::ago(*since, now),
            choices: choices.collect(),
            text,
        }
    }
}

/// The verb on the button of an operation.
fn verb(operation: Operation) -> &'static str {
    match operation {
        Operation::Refresh => "Refresh",
        Operation::Purge => "Remove",
        Operation::Accept => "Accept",
        Operation::Pin => "Keep",
        Operation::Unpin => "Stop keeping",
    }
}
