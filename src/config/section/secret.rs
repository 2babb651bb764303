//! Reads the secrets of a section. An environment variable or a file holds the secret; it is loaded at once and never
//! shown.

use std::path::Path;

use secrecy::SecretString;
use toml::de::DeValue;

use super::super::outside;
use super::Section;

/// The size limit of a secret file. A larger file is a mistake.
const SECRET_LIMIT_BYTES: u64 = 64 * 1024;

impl Section<'_, '_, '_> {
    /// Reads a secret from the environment variable or the file that the table names.
    pub(in crate::config) fn secret(&mut self, key: &'static str, example: &str) -> Option<SecretString> {
        if let DeValue::String(_) = self.value_of(key)?.get_ref() {
            self.problem(
                key,
                format!(
                    "a secret is named here, never written: put it into an environment variable or a file, and write \
                         for example {key} = {example}"
                ),
            );
            return None;
        }
        self.optional_table(key, example, |source| {
            let variable = source.text("env", "REGISTRY_TOKEN", variable_name);
            let file = source.path("file", "/run/secrets/registry-token");
            source.at_most_one(&["env", "file"]);
            if !source.has("env") && !source.has("file") {
                source.problem("", format!("names no secret; write for example {key} = {example}"));
            }
            match (variable, file) {
                (Some(name), _) => source.secret_in_variable(&name),
                (None, Some(path)) => source.secret_in_file(&path),
                (None, None) => None,
            }
        })
        .flatten()
    }

    pub(in crate::config) fn required_secret(&mut self, key: &'static str, example: &str) -> Option<SecretString> {
        self.require(key, example);
        self.secret(key, example)
    }

    fn secret_in_variable(&mut self, name: &str) -> Option<SecretString> {
        let value = (self.reader.env)(name);
        if value.is_none() {
            self.problem("env", format!("the environment variable {name} is not set, or is not text"));
        }
        self.without_final_newline("env", value?, &format!("the environment variable {name}"))
    }

    fn secret_in_file(&mut self, path: &Path) -> Option<SecretString> {
        match outside::text(path, SECRET_LIMIT_BYTES) {
            Ok(text) => {
                if outside::others_may_read(path) {
                    let path = path.display();
                    self.warning("file", format!("every user of this machine may read {path}; chmod o-rwx {path}"));
                }
                self.without_final_newline("file", text, &path.display().to_string())
            }
            Err(cause) => {
                self.problem("file", format!("{} cannot be read: {cause}", path.display()));
                None
            }
        }
    }

    /// Removes final line breaks. An empty secret is a problem; `source` names where the secret came from.
    fn without_final_newline(&mut self, key: &str, mut secret: String, source: &str) -> Option<SecretString> {
        secret.truncate(secret.trim_end_matches(['\r', '\n']).len());
        if secret.is_empty() {
            self.problem(key, format!("{source} is empty"));
            return None;
        }
        Some(SecretString::from(secret))
    }
}

fn variable_name(value: &str) -> Result<String, String> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if value.is_empty() || !value.bytes().all(is_valid) {
        // Not shown: the value may be the secret itself.
        return Err("this is not the name of an environment variable".to_owned());
    }
    Ok(value.to_owned())
}
