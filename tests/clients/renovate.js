// What Renovate finds at a registry: the versions of a provider and of a module, and the hashes that it would write into
// a lock file. `node renovate.js REGISTRY_URL FOLDER`; Renovate is looked for in FOLDER/node_modules.

const { createRequire } = require("node:module");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");

const [registry, folder] = process.argv.slice(2);
const renovate = createRequire(path.join(folder, "node_modules/renovate/package.json"));
const { GlobalConfig } = renovate("./dist/config/global");
const memoryCache = renovate("./dist/util/cache/memory");
const packageCache = renovate("./dist/util/cache/package");
const { getPkgReleases } = renovate("./dist/modules/datasource");
const { TerraformProviderHash } = renovate("./dist/modules/manager/terraform/lockfile/hash");

async function main() {
  const cacheDir = fs.mkdtempSync(path.join(os.tmpdir(), "renovate-"));
  GlobalConfig.set({ cacheDir, baseDir: cacheDir, localDir: cacheDir });
  memoryCache.init();
  await packageCache.init({ cacheDir });
  const releases = async (datasource, packageName) => {
    const found = await getPkgReleases({ datasource, packageName, registryUrls: [registry] });
    return found && found.releases.map((release) => release.version);
  };
  const found = {
    provider: await releases("terraform-provider", "acme/null"),
    module: await releases("terraform-module", "acme/vpc/aws"),
    hashes: await TerraformProviderHash.createHashes(registry, "acme/null", "1.2.0"),
  };
  console.log(JSON.stringify(found));
  await packageCache.cleanup({});
  fs.rmSync(cacheDir, { recursive: true });
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(String(error));
    process.exit(1);
  },
);
