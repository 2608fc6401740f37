#!/bin/sh
# failures.sh LOG prints, of a verbose test log, the first line of each message of the tests that failed, and then the output
# of each of them: its first and its last lines, and the first line of each message between them. It prints the end of the
# log if no test failed.
set -eu
awk '
	# Tests of one package run beside each other: "=== NAME" says whose lines follow.
	/^=== (RUN|CONT|NAME|PAUSE) / { test = $3; sub(/\/.*/, "", test); next }
	/^ *--- FAIL: / { name = $3; sub(/\/.*/, "", name); if (!failed[name]++) order[++count] = name; test = name }
	/^(ok|FAIL|\?)[ \t]/ { test = "" }
	/^panic: / { test = test ? test : "panic"; if (!failed[test]++) order[++count] = test }
	{ output[test, ++lines[test]] = $0; all[++total] = $0 }
	function message(line) { return line ~ /^ +[A-Za-z0-9_]+\.go:[0-9]+: / }
	END {
		for (i = total > 100 ? total - 99 : 1; !count && i <= total; i++) print all[i]
		for (i = 1; i <= count; i++) {
			printf "== messages of %s\n", order[i]
			for (k = 1; k <= lines[order[i]]; k++) if (message(output[order[i], k])) print substr(output[order[i], k], 1, 400)
		}
		for (i = 1; i <= count; i++) {
			name = order[i]; n = lines[name]
			printf "== %s\n", name
			for (k = 1; k <= n; k++) {
				line = output[name, k]
				if (k <= 40 || k > n - 40 || message(line)) {
					if (skipped) printf "[... %d lines]\n", skipped
					skipped = 0
					print substr(line, 1, 400)
				} else skipped++
			}
		}
	}' "$1"
