#!/bin/sh
# Makes words/answers.txt and words/guesses.txt from SCOWL's lists (Debian package `scowl`; see words/COPYRIGHT).
# usage: words.sh FOLDER_WITH_SCOWL_LISTS   (for example /usr/share/dict/scowl)
set -eu
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
lists=$1
# usage: words LETTERS SIZE... -- KIND... ; the words of so many letters in these lists, as far as there are such
words() {
    letters=$1 sizes=
    shift
    while [ "$1" != -- ]; do sizes="$sizes $1"; shift; done
    shift
    for kind in "$@"; do
        for size in $sizes; do
            cat "$lists/$kind-words.$size" 2>/dev/null || true
        done
    done | grep -xE "[a-z]{$letters}" | sort -u
}
# Words that nobody should be set, or taught, by a game; then what is only spoken.
unfit='bitch|booby|boobs|buxom|chink|dykes|enema|fagot|feces|homos|horny|kinky|lynch|moron|negro|nigga|penis|pussy|queer|raped|raper|rapes|semen|sexed|sexes|sissy|slave|sperm|spick|spics|spook|tarts|whore|wench|darky|gooks|gypsy|coons|fucks|cunts|dicks|shits|lezzy|hussy'
spoken='dunno|gonna|kinda|lemme|sades|sorta|wanna'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
words 5 10 20 35 40 50 55 60 70 -- english american british british_z canadian australian |
    grep -vxE "$unfit" > "$work/all"
words 4 10 20 35 40 50 55 60 70 -- english american british > "$work/four"
# Answers are the common words, without plurals and other forms that only add an s.
words 5 10 20 35 -- english american | grep -vxE "$unfit|$spoken" > "$work/common"
awk 'NR == FNR { short[$1] = 1; next } !(/s$/ && (substr($1, 1, 4) in short))' "$work/four" "$work/common" \
    > "$here/words/answers.txt"
comm -23 "$work/all" "$here/words/answers.txt" > "$here/words/guesses.txt"
wc -l "$here/words/answers.txt" "$here/words/guesses.txt"
