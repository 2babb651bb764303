# The tasks of this project. `just` alone lists them.

_list:
    @just --list --unsorted

# Everything that CI runs
check:
    .ci/run

# The tests, or those whose name holds NAME
test name="":
    cargo test {{ name }}

# larder beside nginx and a minimal hyper server
bench *args:
    cargo bench --bench compare -- --rounds 3 {{ args }}

# One fuzz target, or all
fuzz target="":
    tests/long/run {{ if target == "" { "fuzz" } else { "fuzz:" + target } }}

# Clients, faults, kill -9 and a hostile upstream, for ten minutes
soak:
    tests/long/run soak

# A registry, larder in front of it, and the real terraform init
demo:
    cargo run --example demo
