#!/bin/sh
# Makes names/first.txt and names/last.txt from the 1990 census's lists of common names in the PyPI package `names` 0.3.0 (see
# README.md). usage: names.sh FOLDER_WITH_DIST_FILES
set -eu
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$here/names"
# usage: common FILE COUNT: its first names, capitalised
common() { head -n "$2" "$1" | awk '{ print substr($1, 1, 1) tolower(substr($1, 2)) }'; }
{ common "$1/dist.female.first" 400; common "$1/dist.male.first" 400; } | sort -u > "$here/names/first.txt"
common "$1/dist.all.last" 2000 | sort -u > "$here/names/last.txt"
wc -l "$here"/names/*.txt
