# Made by `python -m aot.bake` of wheels/matrix.toml and docker/bases.toml: change those, not this.
# docker/README.md says how it is used.

variable "DIST" { default = "./dist" }
variable "SHARDS" { default = "./build/shards" }
variable "SHARD" { default = "1/1" }
variable "MEMORY_LIMIT" { default = "" }
variable "PIP_EXTRA_INDEX_URL" { default = "" }
variable "REPOSITORY" { default = "localhost/fp4aot" }
variable "VERSION" { default = "dev" }
variable "REVISION" { default = "" }
variable "SOURCE" { default = "" }
group "default" {
  targets = ["wheel-cu130-x86_64"]
}
group "wheels" {
  targets = ["wheel-cu129-x86_64", "wheel-cu129-aarch64", "wheel-cu130-x86_64", "wheel-cu130-aarch64", "wheel-cu132-x86_64", "wheel-cu132-aarch64", "wheel-cu134-x86_64", "wheel-cu134-aarch64", "wheel-cu135-x86_64", "wheel-cu135-aarch64"]
}
group "images" {
  targets = ["serve-cu130", "serve-cu130-sglang", "serve-cu132", "serve-cu134", "serve-cu135"]
}
target "wheel-cu129-x86_64" {
  context = "."
  dockerfile = "docker/Dockerfile.build"
  target = "wheel"
  platforms = ["linux/amd64"]
  args = {
    BASE = "quay.io/pypa/manylinux_2_28_x86_64:2026.08.15-1@sha256:0c87ccb5996dab6c3b7612ee4fda7b80c4ab3c44a86c2541e4a872afdf4f131b"
    PYTHON = "/opt/python/cp311-cp311/bin/python"
    PACKAGES = ""
    CUDA = "12.9"
    FLASHINFER = "0.7.2"
    PRESET = "full"
    PLATFORM = "x86_64"
    ARCHITECTURES = "9.0a,10.0a,10.3a,12.0f"
    MEMORY_LIMIT = MEMORY_LIMIT
    PIP_EXTRA_INDEX_URL = PIP_EXTRA_INDEX_URL
    CUDA_BASE = "nvidia/cuda:12.9.1-devel-ubuntu24.04@sha256:020bc241a628776338f4d4053fed4c38f6f7f3d7eb5919fecb8de313bb8ba47c"
    CUDA_HOME = "/cuda/usr/local/cuda-12.9"
  }
  output = ["type=local,dest=${DIST}/cu129-x86_64"]
}
target "shard-cu129-x86_64" {
  inherits = ["wheel-cu129-x86_64"]
  args = {
    SHARD = SHARD
  }
  output = ["type=local,dest=${SHARDS}/cu129-x86_64"]
}
target "link-cu129-x86_64" {
  inherits = ["wheel-cu129-x86_64"]
  target = "linked"
  contexts = {
    shards = "${SHARDS}/cu129-x86_64"
  }
}
target "wheel-cu129-aarch64" {
  context = "."
  dockerfile = "docker/Dockerfile.build"
  target = "wheel"
  platforms = ["linux/amd64"]
  args = {
    BASE = "debian:bookworm-slim@sha256:abd67ffcfa541b485a3dff59865ab629aa048a6c613e639d36e7456b0b229241"
    PYTHON = "python3"
    PACKAGES = "ca-certificates g++ g++-aarch64-linux-gnu python3 python3-venv qemu-user"
    CUDA = "12.9"
    FLASHINFER = "0.7.2"
    PRESET = "full"
    PLATFORM = "aarch64"
    ARCHITECTURES = "9.0a,10.0a,10.3a,12.0f"
    MEMORY_LIMIT = MEMORY_LIMIT
    PIP_EXTRA_INDEX_URL = PIP_EXTRA_INDEX_URL
    CUDA_BASE = "nvidia/cuda:12.9.1-devel-ubuntu24.04@sha256:020bc241a628776338f4d4053fed4c38f6f7f3d7eb5919fecb8de313bb8ba47c"
    CUDA_HOME = "/cuda/usr/local/cuda-12.9"
  }
  output = ["type=local,dest=${DIST}/cu129-aarch64"]
}
target "shard-cu129-aarch64" {
  inherits = ["wheel-cu129-aarch64"]
  args = {
    SHARD = SHARD
  }
  output = ["type=local,dest=${SHARDS}/cu129-aarch64"]
}
target "link-cu129-aarch64" {
  inherits = ["wheel-cu129-aarch64"]
  target = "linked"
  contexts = {
    shards = "${SHARDS}/cu129-aarch64"
  }
}
target "wheel-cu130-x86_64" {
  context = "."
  dockerfile = "docker/Dockerfile.build"
  target = "wheel"
  platforms = ["linux/amd64"]
  args = {
    BASE = "quay.io/pypa/manylinux_2_28_x86_64:2026.08.15-1@sha256:0c87ccb5996dab6c3b7612ee4fda7b80c4ab3c44a86c2541e4a872afdf4f131b"
    PYTHON = "/opt/python/cp311-cp311/bin/python"
    PACKAGES = ""
    CUDA = "13.0"
    FLASHINFER = "0.7.2"
    PRESET = "full"
    PLATFORM = "x86_64"
    ARCHITECTURES = "9.0a,10.0a,10.3a,12.0f"
    MEMORY_LIMIT = MEMORY_LIMIT
    PIP_EXTRA_INDEX_URL = PIP_EXTRA_INDEX_URL
  }
  output = ["type=local,dest=${DIST}/cu130-x86_64"]
}
target "shard-cu130-x86_64" {
  inherits = ["wheel-cu130-x86_64"]
  args = {
    SHARD = SHARD
  }
  output = ["type=local,dest=${SHARDS}/cu130-x86_64"]
}
target "link-cu130-x86_64" {
  inherits = ["wheel-cu130-x86_64"]
  target = "linked"
  contexts = {
    shards = "${SHARDS}/cu130-x86_64"
  }
}
target "wheel-cu130-aarch64" {
  context = "."
  dockerfile = "docker/Dockerfile.build"
  target = "wheel"
  platforms = ["linux/amd64"]
  args = {
    BASE = "debian:bookworm-slim@sha256:abd67ffcfa541b485a3dff59865ab629aa048a6c613e639d36e7456b0b229241"
    PYTHON = "python3"
    PACKAGES = "ca-certificates g++ g++-aarch64-linux-gnu python3 python3-venv qemu-user"
    CUDA = "13.0"
    FLASHINFER = "0.7.2"
    PRESET = "full"
    PLATFORM = "aarch64"
    ARCHITECTURES = "9.0a,10.0a,10.3a,11.0a,12.0f"
    MEMORY_LIMIT = MEMORY_LIMIT
    PIP_EXTRA_INDEX_URL = PIP_EXTRA_INDEX_URL
  }
  output = ["type=local,dest=${DIST}/cu130-aarch64"]
}
target "shard-cu130-aarch64" {
  inherits = ["wheel-cu130-aarch64"]
  args = {
    SHARD = SHARD
  }
  output = ["type=local,dest=${SHARDS}/cu130-aarch64"]
}
target "link-cu130-aarch64" {
  inherits = ["wheel-cu130-aarch64"]
  target = "linked"
  contexts = {
    shards = "${SHARDS}/cu130-aarch64"
  }
}
target "wheel-cu132-x86_64" {
  context = "."
  dockerfile = "docker/Dockerfile.build"
  target = "wheel"
  platforms = ["linux/amd64"]
  args = {
    BASE = "quay.io/pypa/manylinux_2_28_x86_64:2026.08.15-1@sha256:0c87ccb5996dab6c3b7612ee4fda7b80c4ab3c44a86c2541e4a872afdf4f131b"
    PYTHON = "/opt/python/cp311-cp311/bin/python"
    PACKAGES = ""
    CUDA = "13.2"
    FLASHINFER = "0.7.2"
    PRESET = "full"
    PLATFORM = "x86_64"
    ARCHITECTURES = "9.0a,10.0a,10.3a,12.0f"
    MEMORY_LIMIT = MEMORY_LIMIT
    PIP_EXTRA_INDEX_URL = PIP_EXTRA_INDEX_URL
  }
  output = ["type=local,dest=${DIST}/cu132-x86_64"]
}
target "shard-cu132-x86_64" {
  inherits = ["wheel-cu132-x86_64"]
  args = {
    SHARD = SHARD
  }
  output = ["type=local,dest=${SHARDS}/cu132-x86_64"]
}
target "link-cu132-x86_64" {
  inherits = ["wheel-cu132-x86_64"]
  target = "linked"
  contexts = {
    shards = "${SHARDS}/cu132-x86_64"
  }
}
target "wheel-cu132-aarch64" {
  context = "."
  dockerfile = "docker/Dockerfile.build"
  target = "wheel"
  platforms = ["linux/amd64"]
  args = {
    BASE = "debian:bookworm-slim@sha256:abd67ffcfa541b485a3dff59865ab629aa048a6c613e639d36e7456b0b229241"
    PYTHON = "python3"
    PACKAGES = "ca-certificates g++ g++-aarch64-linux-gnu python3 python3-venv qemu-user"
    CUDA = "13.2"
    FLASHINFER = "0.7.2"
    PRESET = "full"
    PLATFORM = "aarch64"
    ARCHITECTURES = "9.0a,10.0a,10.3a,11.0a,12.0f"
    MEMORY_LIMIT = MEMORY_LIMIT
    PIP_EXTRA_INDEX_URL = PIP_EXTRA_INDEX_URL
  }
  output = ["type=local,dest=${DIST}/cu132-aarch64"]
}
target "shard-cu132-aarch64" {
  inherits = ["wheel-cu132-aarch64"]
  args = {
    SHARD = SHARD
  }
  output = ["type=local,dest=${SHARDS}/cu132-aarch64"]
}
target "link-cu132-aarch64" {
  inherits = ["wheel-cu132-aarch64"]
  target = "linked"
  contexts = {
    shards = "${SHARDS}/cu132-aarch64"
  }
}
target "wheel-cu134-x86_64" {
  context = "."
  dockerfile = "docker/Dockerfile.build"
  target = "wheel"
  platforms = ["linux/amd64"]
  args = {
    BASE = "quay.io/pypa/manylinux_2_28_x86_64:2026.08.15-1@sha256:0c87ccb5996dab6c3b7612ee4fda7b80c4ab3c44a86c2541e4a872afdf4f131b"
    PYTHON = "/opt/python/cp311-cp311/bin/python"
    PACKAGES = ""
    CUDA = "13.4"
    FLASHINFER = "0.7.2"
    PRESET = "full"
    PLATFORM = "x86_64"
    ARCHITECTURES = "9.0a,10.0a,10.3a,12.0f"
    MEMORY_LIMIT = MEMORY_LIMIT
    PIP_EXTRA_INDEX_URL = PIP_EXTRA_INDEX_URL
  }
  output = ["type=local,dest=${DIST}/cu134-x86_64"]
}
target "shard-cu134-x86_64" {
  inherits = ["wheel-cu134-x86_64"]
  args = {
    SHARD = SHARD
  }
  output = ["type=local,dest=${SHARDS}/cu134-x86_64"]
}
target "link-cu134-x86_64" {
  inherits = ["wheel-cu134-x86_64"]
  target = "linked"
  contexts = {
    shards = "${SHARDS}/cu134-x86_64"
  }
}
target "wheel-cu134-aarch64" {
  context = "."
  dockerfile = "docker/Dockerfile.build"
  target = "wheel"
  platforms = ["linux/amd64"]
  args = {
    BASE = "debian:bookworm-slim@sha256:abd67ffcfa541b485a3dff59865ab629aa048a6c613e639d36e7456b0b229241"
    PYTHON = "python3"
    PACKAGES = "ca-certificates g++ g++-aarch64-linux-gnu python3 python3-venv qemu-user"
    CUDA = "13.4"
    FLASHINFER = "0.7.2"
    PRESET = "full"
    PLATFORM = "aarch64"
    ARCHITECTURES = "9.0a,10.0a,10.3a,11.0a,12.0f"
    MEMORY_LIMIT = MEMORY_LIMIT
    PIP_EXTRA_INDEX_URL = PIP_EXTRA_INDEX_URL
  }
  output = ["type=local,dest=${DIST}/cu134-aarch64"]
}
target "shard-cu134-aarch64" {
  inherits = ["wheel-cu134-aarch64"]
  args = {
    SHARD = SHARD
  }
  output = ["type=local,dest=${SHARDS}/cu134-aarch64"]
}
target "link-cu134-aarch64" {
  inherits = ["wheel-cu134-aarch64"]
  target = "linked"
  contexts = {
    shards = "${SHARDS}/cu134-aarch64"
  }
}
target "wheel-cu135-x86_64" {
  context = "."
  dockerfile = "docker/Dockerfile.build"
  target = "wheel"
  platforms = ["linux/amd64"]
  args = {
    BASE = "quay.io/pypa/manylinux_2_28_x86_64:2026.08.15-1@sha256:0c87ccb5996dab6c3b7612ee4fda7b80c4ab3c44a86c2541e4a872afdf4f131b"
    PYTHON = "/opt/python/cp311-cp311/bin/python"
    PACKAGES = ""
    CUDA = "13.5"
    FLASHINFER = "0.7.2"
    PRESET = "full"
    PLATFORM = "x86_64"
    ARCHITECTURES = "9.0a,10.0a,10.3a,12.0f"
    MEMORY_LIMIT = MEMORY_LIMIT
    PIP_EXTRA_INDEX_URL = PIP_EXTRA_INDEX_URL
  }
  output = ["type=local,dest=${DIST}/cu135-x86_64"]
}
target "shard-cu135-x86_64" {
  inherits = ["wheel-cu135-x86_64"]
  args = {
    SHARD = SHARD
  }
  output = ["type=local,dest=${SHARDS}/cu135-x86_64"]
}
target "link-cu135-x86_64" {
  inherits = ["wheel-cu135-x86_64"]
  target = "linked"
  contexts = {
    shards = "${SHARDS}/cu135-x86_64"
  }
}
target "wheel-cu135-aarch64" {
  context = "."
  dockerfile = "docker/Dockerfile.build"
  target = "wheel"
  platforms = ["linux/amd64"]
  args = {
    BASE = "debian:bookworm-slim@sha256:abd67ffcfa541b485a3dff59865ab629aa048a6c613e639d36e7456b0b229241"
    PYTHON = "python3"
    PACKAGES = "ca-certificates g++ g++-aarch64-linux-gnu python3 python3-venv qemu-user"
    CUDA = "13.5"
    FLASHINFER = "0.7.2"
    PRESET = "full"
    PLATFORM = "aarch64"
    ARCHITECTURES = "9.0a,10.0a,10.3a,11.0a,12.0f"
    MEMORY_LIMIT = MEMORY_LIMIT
    PIP_EXTRA_INDEX_URL = PIP_EXTRA_INDEX_URL
  }
  output = ["type=local,dest=${DIST}/cu135-aarch64"]
}
target "shard-cu135-aarch64" {
  inherits = ["wheel-cu135-aarch64"]
  args = {
    SHARD = SHARD
  }
  output = ["type=local,dest=${SHARDS}/cu135-aarch64"]
}
target "link-cu135-aarch64" {
  inherits = ["wheel-cu135-aarch64"]
  target = "linked"
  contexts = {
    shards = "${SHARDS}/cu135-aarch64"
  }
}
target "serve-cu130" {
  context = "."
  dockerfile = "docker/Dockerfile.serve"
  target = "serve"
  platforms = ["linux/amd64", "linux/arm64"]
  contexts = {
    wheels = DIST
  }
  args = {
    BASE = "python:3.12-slim-bookworm@sha256:0f5b26b9518d002b6173fd61daad821fa340635ebfec5bba471013f9ca114579"
    PYTHON = "python3"
    CUDA = "13.0"
    WHEELS = "cu130"
    REQUIREMENTS = "/requirements/serve-cuda13.txt"
    VERSION = VERSION
    REVISION = REVISION
    SOURCE = SOURCE
  }
  tags = ["${REPOSITORY}:${VERSION}-cu130"]
}
target "serve-cu130-sglang" {
  context = "."
  dockerfile = "docker/Dockerfile.serve"
  target = "serve"
  platforms = ["linux/amd64", "linux/arm64"]
  contexts = {
    wheels = DIST
  }
  args = {
    BASE = "python:3.12-slim-bookworm@sha256:0f5b26b9518d002b6173fd61daad821fa340635ebfec5bba471013f9ca114579"
    PYTHON = "python3"
    CUDA = "13.0"
    WHEELS = "cu130"
    REQUIREMENTS = "/requirements/sglang-cuda13.txt"
    VERSION = VERSION
    REVISION = REVISION
    SOURCE = SOURCE
  }
  tags = ["${REPOSITORY}:${VERSION}-cu130-sglang"]
}
target "serve-cu132" {
  context = "."
  dockerfile = "docker/Dockerfile.serve"
  target = "serve"
  platforms = ["linux/amd64", "linux/arm64"]
  contexts = {
    wheels = DIST
  }
  args = {
    BASE = "python:3.12-slim-bookworm@sha256:0f5b26b9518d002b6173fd61daad821fa340635ebfec5bba471013f9ca114579"
    PYTHON = "python3"
    CUDA = "13.2"
    WHEELS = "cu132"
    REQUIREMENTS = "/requirements/serve-cuda13.txt"
    VERSION = VERSION
    REVISION = REVISION
    SOURCE = SOURCE
  }
  tags = ["${REPOSITORY}:${VERSION}-cu132"]
}
target "serve-cu134" {
  context = "."
  dockerfile = "docker/Dockerfile.serve"
  target = "serve"
  platforms = ["linux/amd64", "linux/arm64"]
  contexts = {
    wheels = DIST
  }
  args = {
    BASE = "python:3.12-slim-bookworm@sha256:0f5b26b9518d002b6173fd61daad821fa340635ebfec5bba471013f9ca114579"
    PYTHON = "python3"
    CUDA = "13.4"
    WHEELS = "cu134"
    REQUIREMENTS = "/requirements/serve-cuda13.txt"
    VERSION = VERSION
    REVISION = REVISION
    SOURCE = SOURCE
  }
  tags = ["${REPOSITORY}:${VERSION}-cu134"]
}
target "serve-cu135" {
  context = "."
  dockerfile = "docker/Dockerfile.serve"
  target = "serve"
  platforms = ["linux/amd64", "linux/arm64"]
  contexts = {
    wheels = DIST
  }
  args = {
    BASE = "python:3.12-slim-bookworm@sha256:0f5b26b9518d002b6173fd61daad821fa340635ebfec5bba471013f9ca114579"
    PYTHON = "python3"
    CUDA = "13.5"
    WHEELS = "cu135"
    REQUIREMENTS = "/requirements/serve-cuda13.txt"
    VERSION = VERSION
    REVISION = REVISION
    SOURCE = SOURCE
  }
  tags = ["${REPOSITORY}:${VERSION}-cu135"]
}
# No image for serving with CUDA 12.9: docker/requirements has no PyTorch for it.
