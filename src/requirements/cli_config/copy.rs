//! Copies a client's CLI configuration with every setting, also those that larder does not know, and adds `host` blocks.

use std::fmt;

use super::{BadHcl, Hcl1Node, Hostname};

/// All settings of a client's configuration files, merged as the client merges them. Holds secrets, so it has no Debug form
/// of its contents.
#[derive(Clone, Default)]
pub struct CliConfigCopy {
    members: Vec<(String, Hcl1Node)>,
}

/// The blocks of which a later file replaces those with the same label (client configuration).
const LABELLED: [&str; 4] = ["host", "credentials", "credentials_helper", "oci_credentials"];

impl CliConfigCopy {
    /// Reads one file: HCL 1, or JSON if it starts with a brace.
    ///
    /// # Errors
    /// A syntax error, with its position. The client prints such an error and continues without the file.
    pub fn read(file: &[u8]) -> Result<Self, BadHcl> {
        let root = Hcl1Node::read(file)?;
        let mut members = Vec::new();
        for (name, value) in root.members() {
            // Each label is a member of its own, so that one can be replaced.
            match value {
                Hcl1Node::Members(_) | Hcl1Node::List(_) if LABELLED.contains(&name) => {
                    let blocks = value.members().map(|(label, block)| labelled(name, label, block.clone()));
                    members.extend(blocks);
                }
                value => members.push((name.to_owned(), value.clone())),
            }
        }
        Ok(Self { members })
    }

    /// Merges a file that the client reads later: its labelled blocks replace earlier ones, other settings only add.
    /// A second `provider_installation` stays, so that the client reports it.
    pub fn merge(&mut self, later: Self) {
        for (name, value) in &later.members {
            if let Some(label) = label_of(name, value) {
                self.remove_block(name, label);
            }
        }
        for (name, value) in later.members {
            let is_repeatable = name == "provider_installation" || label_of(&name, &value).is_some();
            let earlier = self.members.iter_mut().find(|(earlier, _)| *earlier == name && !is_repeatable);
            match earlier {
                // A switch is on if any file turns it on; an empty text counts as absent.
                Some((_, earlier)) if value == Hcl1Node::Scalar("true".to_owned()) || earlier.text() == Some("") => {
                    *earlier = value;
                }
                Some(_) => {}
                None => self.members.push((name, value)),
            }
        }
    }

    /// Merges the files of another client, for a program that may run either: of two settings, the one that is there stays.
    pub fn add_missing(&mut self, other: Self) {
        for (name, value) in other.members {
            let is_present = self.members.iter().any(|(present, present_value)| {
                *present == name && label_key(present, present_value) == label_key(&name, &value)
            });
            if !is_present {
                self.members.push((name, value));
            }
        }
    }

    /// Adds the `host` blocks of another configuration; they replace blocks of the same host.
    pub fn set_hosts(&mut self, hosts: Self) {
        let blocks = hosts.members.into_iter().filter(|(name, _)| name == "host").collect();
        self.merge(Self { members: blocks });
    }

    /// Removes the `host` block of a registry.
    pub fn remove_host(&mut self, host: &Hostname) {
        self.remove_block("host", host.as_str());
    }

    fn remove_block(&mut self, name: &str, label: &str) {
        let key = block_key(name, label);
        self.members.retain(|(present, value)| {
            let present_label = label_of(present, value).filter(|_| present == name);
            present_label.is_none_or(|present_label| block_key(name, present_label) != key)
        });
    }

    /// The text of the file, in HCL 1.
    pub fn text(&self) -> String {
        Hcl1Node::Members(self.members.clone()).to_hcl()
    }
}

impl fmt::Debug for CliConfigCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CliConfigCopy").field("members", &self.members.len()).finish()
    }
}

fn labelled(name: &str, label: &str, block: Hcl1Node) -> (String, Hcl1Node) {
    (name.to_owned(), Hcl1Node::Members(vec![(label.to_owned(), block)]))
}

/// The label of a block that [`CliConfigCopy::read`] made.
fn label_of<'a>(name: &str, value: &'a Hcl1Node) -> Option<&'a str> {
    match value {
        Hcl1Node::Members(members) if LABELLED.contains(&name) => members.first().map(|(label, _)| label.as_str()),
        _ => None,
    }
}

fn label_key(name: &str, value: &Hcl1Node) -> Option<String> {
    label_of(name, value).map(|label| block_key(name, label))
}

/// A label by which blocks are compared. One host has several spellings.
fn block_key(name: &str, label: &str) -> String {
    if name == "credentials_helper" {
        return label.to_owned();
    }
    Hostname::parse(label).map_or_else(|_| label.to_owned(), |host| host.as_str().to_owned())
}
