#!/bin/sh
# returns/list.sh: what lies in the inbox, as one JSON array
cd returns/inbox || exit 1
comma=
echo "["
for file in *.json; do
  [ -e "$file" ] || continue
  printf '%s' "$comma"
  cat "$file"
  comma=,
done
echo "]"
