# Checks and prints the kernel and the settings of this machine.
set -eu

fail() {
	echo "$*" >&2
	exit 1
}

# All units have started; a failed unit fails this command.
state=$(systemctl is-system-running --wait) || {
	systemctl list-units --failed --no-legend --plain
	systemctl list-jobs --no-legend
	fail "the system is $state"
}
echo "Linux $(uname -r), $(nproc) processors, $(sed -n 's/MemTotal: *//p' /proc/meminfo), up $(cut -d' ' -f1 /proc/uptime) s"

hierarchy=$(stat -fc %T /sys/fs/cgroup)
case $VM_CGROUP in
v2)
	[ "$hierarchy" = cgroup2fs ] || fail "/sys/fs/cgroup is $hierarchy"
	for controller in memory pids io cpu; do
		grep -qw "$controller" /sys/fs/cgroup/cgroup.controllers || fail "no controller $controller"
	done
	;;
v1)
	[ "$hierarchy" = tmpfs ] || fail "/sys/fs/cgroup is $hierarchy"
	[ -e /sys/fs/cgroup/memory/memory.usage_in_bytes ] || fail "no memory controller of cgroup v1"
	;;
esac
echo "cgroup $VM_CGROUP"

case $VM_PSI in
1) cat /proc/pressure/memory ;;
0) if cat /proc/pressure/memory 2>/dev/null; then fail "/proc/pressure/memory exists"; fi ;;
esac

# All capabilities of the kernel.
last=$(cat /proc/sys/kernel/cap_last_cap)
want=$(printf '%016x' $(((1 << (last + 1)) - 1)))
have=$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)
[ "$have" = "$want" ] || fail "capabilities $have; want $want"
[ "$(cat /proc/self/oom_score_adj)" = 0 ] || fail "oom_score_adj $(cat /proc/self/oom_score_adj)"

btf=no
[ ! -e /sys/kernel/btf/vmlinux ] || btf=yes
[ "$btf" = "$VM_BTF" ] || fail "BTF: $btf; want $VM_BTF"
echo "BTF $btf, MGLRU $(cat /sys/kernel/mm/lru_gen/enabled), $(sed -n 's/HugePages_Total: *//p' /proc/meminfo) huge pages, lockdown $(cat /sys/kernel/security/lockdown)"
