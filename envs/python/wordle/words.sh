#!/bin/sh
# Makes words/answers.txt and words/guesses.txt (see README.md for the sources).
# usage: words.sh SCOWL_FOLDER WORD_LIST   (for example /usr/share/dict/scowl node_modules/word-list/words.txt)
set -eu
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$here/words"
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
scowl=$1
level() { for size in "$@"; do cat "$scowl/english-words.$size" "$scowl/american-words.$size"; done | grep -E '^[a-z]{5}$'; }
grep -E '^[a-z]{5}$' "$2" | sort -u > "$temp/list"
# Answers: common words that are in both lists, but no plurals or third persons in -s and no past tenses in -ed.
level 10 20 35 | sort -u > "$temp/common"
{ grep -vE '[^s]s$|ed$' "$temp/common"; grep -E 'eed$|us$|is$' "$temp/common"; } | sort -u | comm -12 - "$temp/list" |
    grep -vE '^(abort|bigot|boob|cunt|darky|dildo|dyke|enema|fagot|feces|gypsy|horny|kinky|lynch|negro|nud|penis|porn|pube|pubic|queer|rape|semen|shit|slave|sperm|turd|vulva|wench|whore)' \
    > "$here/words/answers.txt"
{ level 10 20 35 40 50 55 60 70; cat "$temp/list"; } | sort -u > "$here/words/guesses.txt"
wc -l "$here/words/answers.txt" "$here/words/guesses.txt"
