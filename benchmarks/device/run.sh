#!/usr/bin/env bash
# All device measurements on one GPU, within 8 minutes; `--dry-run`: tiny sizes on the CPU.
# Carries nothing but this checkout. Writes a table to the terminal and JSON to --out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONPATH="$PWD:$PWD/tests${PYTHONPATH:+:$PYTHONPATH}"
PYTHON="${PYTHON:-python3}"
exec "$PYTHON" -m benchmarks.device.run "$@"
