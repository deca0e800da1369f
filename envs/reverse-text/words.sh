#!/bin/sh
# Makes words/train.txt and words/eval.txt from SCOWL's size-10 lists (Debian package `scowl`; see README.md).
# usage: words.sh FOLDER_WITH_SCOWL_LISTS   (for example /usr/share/dict/scowl)
set -eu
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$here/words"
by_length() { awk '{ print length($0), $0 }' | sort -k1,1n -k2,2 | cut -d' ' -f2; }
all=$(cat "$1/english-words.10" "$1/american-words.10" | grep -E '^[a-z]{2,9}$' | sort -u |
    grep -vxE 'cs|pi|re|hell|kill|killed|killing|kills|dead|death|hate|hates|hated|sex|sexes|stupid|ugly|damn')
# Every eighth word of the alphabet is kept for the eval split.
echo "$all" | awk 'NR % 8 != 0' | by_length > "$here/words/train.txt"
echo "$all" | awk 'NR % 8 == 0' | by_length > "$here/words/eval.txt"
