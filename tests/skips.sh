#!/bin/sh
# skips.sh LOG LIST prints the tests that a verbose test log says were skipped,
# and fails when one of them does not stand, with its reason, in LIST.
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
		echo "skipped, as agreed: $(grep "^$test[[:space:]]" "$list")"
	else
		echo "skipped, and not agreed in $list: $test"
		status=1
	fi
done
exit $status
