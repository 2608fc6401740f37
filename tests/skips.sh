#!/bin/sh
# skips.sh LOG LIST prints the tests that were skipped in a verbose test log, and
# fails if one of them is not in LIST.
set -eu
log=$1 list=$2
skipped=$(sed -n 's/^ *--- SKIP: \([^ ]*\).*/\1/p' "$log" | sort -u)
if [ -z "$skipped" ]; then
	echo "no test was skipped"
	exit 0
fi
status=0
for test in $skipped; do
	if grep -q "^$test[[:space:]]" "$list"; then
		echo "skipped, listed: $(grep "^$test[[:space:]]" "$list")"
	else
		echo "skipped, not listed in $list: $test"
		status=1
	fi
done
exit $status
