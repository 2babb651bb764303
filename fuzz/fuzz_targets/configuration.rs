//! Configurations: resolving any file terminates, names the place of each problem, and queries registries for valid
//! addresses only.
#![no_main]

use larder::address::{Address, ModulePackage, Platform, Version};
use larder::requirements::{Configurations, Files, ModuleFiles, Order, OrderEntry, Registries, resolve};
use libfuzzer_sys::fuzz_target;

const NAMES: [&str; 9] = [
    "main.tf",
    "main.tf.json",
    "main.tofu",
    "main.tofu.json",
    "main_override.tf",
    "main.tftest.hcl",
    "main.tftest.json",
    ".terraform.lock.hcl",
    "terraform.tfvars",
];

/// Registries that have one version of everything, and the same file in each module.
struct UniformRegistries(Files);

impl Registries for UniformRegistries {
    type Error = String;

    async fn versions(&self, _: &Address) -> Result<Vec<Version>, String> {
        Version::parse("1.0.0").map(|version| vec![version]).map_err(|bad| bad.to_string())
    }

    async fn module_files(&self, _: &ModulePackage) -> Result<ModuleFiles, String> {
        Ok(ModuleFiles { files: self.0.clone(), subdir: String::new() })
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((name_index, text)) = input.split_first() else { return };
    let name = NAMES[usize::from(*name_index) % NAMES.len()];
    let mut files = Files::default();
    if files.insert(name, text).is_err() {
        return;
    }
    // A valid file in the same folder must be resolved whatever the fuzzed file contains.
    files.insert("well.tf", b"resource \"well_x\" \"y\" {}\n").expect("it is a file");
    let configurations = Configurations::new(files.clone(), vec![String::new()], None).expect("the top has files");
    let platform = Platform::parse("linux_amd64").expect("it is a platform");
    let order = Order::new(vec![OrderEntry::Configurations(configurations)], vec![platform]).expect("it is an order");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let resolved = runtime.block_on(resolve(&order, &UniformRegistries(files)));
    assert!(
        resolved.unavailable.iter().all(|item| !item.reason.is_empty() && !item.subject.contains(char::is_control))
    );
    let is_expected = |artifact: &str| artifact.contains("/hashicorp/well ");
    let is_resolved = resolved.archives.iter().any(|required| is_expected(&required.artifact.to_string()));
    assert!(
        is_resolved
            || resolved.unavailable.iter().any(|item| item.subject.contains("well"))
            || text.windows(4).any(|part| part == b"well")
    );
});
