#!/usr/bin/env bash
# Your own images, from training to proof.
#
#   python examples/write_digits.py digits      # images to try it on; or use your own
#   examples/own_images.sh digits runs/digits seven
#
# DIR has DIR/train/<class>/* and DIR/test/<class>/*. RUNS is where the models go. CLASS is what
# must be forgotten; without it, the first. For photographs, use --model resnet18 and --size 64.
set -euo pipefail

images=${1:?usage: own_images.sh DIR RUNS [CLASS]}
runs=${2:?usage: own_images.sh DIR RUNS [CLASS]}
first=("$images"/train/*/)
class=${3:-$(basename "${first[0]}")}
mkdir -p "$runs"

# A model, and the reference that never saw the class: the same recipe, another seed.
purge train --data "$images" --model small-resnet --set epochs=10 --set batch_size=32 --out "$runs/base"
purge train --like "$runs/base" --without-class "$class" --out "$runs/reference"

# Forget the class, and measure what is left of it beside the reference.
purge unlearn "$runs/base" --forget-class "$class" --out "$runs/without-class"
purge audit "$runs/without-class" --retrained "$runs/reference"

# Forget single images, by their paths as they are in DIR: here every fiftieth.
(cd "$images" && find train -type f | sort | awk 'NR % 50 == 1') > "$runs/images.txt"
purge unlearn "$runs/base" --forget-ids "$runs/images.txt" --out "$runs/without-images"
purge audit "$runs/without-images" --metrics quick
