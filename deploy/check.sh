#!/usr/bin/env bash
# `make deploy-check`: a policy scanner over what kustomize renders, and the custom resources against the types of the operator
# that reads them. Both have their own dependencies, so they are installed apart from weir's packages.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v kubectl > /dev/null; then
    echo "deploy-check: skipped, there is no kubectl to run kustomize"
    exit 0
fi
rendered=$(mktemp -d)
trap 'rm -rf "$rendered"' EXIT
for overlay in deploy/kubernetes/overlays/*/; do
    kubectl kustomize "$overlay" > "$rendered/$(basename "$overlay").yaml"
done

.venv/checkov/bin/checkov --config-file deploy/checkov.yaml --framework kubernetes --directory "$rendered"
.venv/checkov/bin/checkov --config-file deploy/checkov.yaml --framework dockerfile --directory deploy/images
.venv/bin/python deploy/custom_resources.py .venv/operator "$rendered"/*.yaml
