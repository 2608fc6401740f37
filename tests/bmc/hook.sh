#!/bin/sh
# The power of a simulated machine: ipmi_sim calls it with NAME get power, or NAME set power|reset|shutdown VALUE. Its
# state and its faults are files in its directory: power (1 or 0); delay (seconds); ignore and refuse, which exist or not.
# Each call that sets something becomes a line of the file log when it takes effect.
dir=$(dirname "$0")
shift
[ ! -e "$dir/delay" ] || sleep "$(cat "$dir/delay")"
if [ "$1" = get ]; then
	[ "$2" = power ] || exit 1
	echo "power:$(cat "$dir/power")"
	exit 0
fi

note() {
	echo "$(date +%s.%N) $1 $action" >>"$dir/log"
}
action="$2 $3"
if [ -e "$dir/refuse" ]; then
	note refused
	exit 1
fi
if [ -e "$dir/ignore" ]; then
	note ignored
	exit 0
fi
case $action in
"power 0" | "shutdown 1") power=0 ;;
"power 1" | "reset 1") power=1 ;;
*)
	note refused
	exit 1
	;;
esac
echo "$power" >"$dir/power.new"
mv "$dir/power.new" "$dir/power"
note done
