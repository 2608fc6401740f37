package pods

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// ForeignContainer is a container on this host that the runtime does not list. It is never
// killed.
type ForeignContainer struct {
	Cgroup string
	// Processes counts the processes in it and below it.
	Processes int
	// Memory is its working set in bytes; nil if it can't be read.
	Memory *int64
	// Command is the name of the process with the lowest pid.
	Command string
}

// containerName matches the cgroup names of container engines: the container's ID, or the
// names of LXC and systemd-machined.
var containerName = regexp.MustCompile(`(^|[^0-9a-f])[0-9a-f]{64}([^0-9a-f]|$)|^lxc\.payload\.|^machine-.*\.scope$`)

// ForeignContainers returns the containers on this host that the runtime does not list, by
// cgroup path: cgroups with the name of a container, or with processes of another pid
// namespace than the node's. It reads the whole tree. Before the first complete list it
// returns nil.
func (inv *Inventory) ForeignContainers() []ForeignContainer {
	w := inv.current.Load()
	if inv.runtime != nil && w.listed.IsZero() {
		return nil
	}
	l := foreignScan{Inventory: inv, snapshot: w, left: maxScannedCgroups}
	l.init, _ = os.Readlink(inv.procfs.Path("1", "ns", "pid"))
	l.scan("/")
	slices.SortFunc(l.found, func(a, b ForeignContainer) int { return strings.Compare(a.Cgroup, b.Cgroup) })
	return l.found
}

// foreignScan is a search for containers that the runtime does not list.
type foreignScan struct {
	*Inventory
	snapshot *listSnapshot
	init     string // the node's pid namespace; "" if not readable
	left     int    // cgroups that may still be read
	found    []ForeignContainer
}

// scan returns the processes of a cgroup and of all below it, and records the containers
// among those cgroups.
func (n *foreignScan) scan(at string) []int {
	if n.left--; n.left < 0 {
		return nil
	}
	g, err := n.hierarchy.Open(at)
	if err != nil {
		return nil
	}
	pids, err := g.Procs(nil)
	memory, memoryErr := g.Memory()
	children, childrenErr := g.Children()
	g.Close() // before the recursion, which may be deep
	if err != nil || len(pids) == 0 || n.snapshot.belongsToPod(at) {
		return pids
	}
	own := pids
	named := containerName.MatchString(path.Base(at))
	if !named && childrenErr == nil {
		own = n.without(pids, at, children)
	}
	if at == "/" || slices.ContainsFunc(own, n.isListedInit) || !named && !slices.ContainsFunc(own, n.inOtherNamespace) {
		return pids
	}
	o := ForeignContainer{Cgroup: at, Processes: len(own), Command: n.command(own[0])}
	if memoryErr == nil {
		o.Memory = new(signed(memory.WorkingSet))
	}
	n.found = append(n.found, o)
	return pids
}

// without returns the processes of a cgroup that are in none of its children.
func (n *foreignScan) without(pids []int, at string, children []string) []int {
	var below []int
	for _, name := range children {
		below = append(below, n.scan(path.Join(at, name))...)
	}
	slices.Sort(below)
	return slices.DeleteFunc(slices.Clone(pids), func(pid int) bool {
		_, ok := slices.BinarySearch(below, pid)
		return ok
	})
}

// isListedInit reports whether a process is the first of a container that the runtime lists.
func (n *foreignScan) isListedInit(pid int) bool { return n.snapshot.guard.Inits[pid] != "" }

// inOtherNamespace reports whether a process is in another pid namespace than the node's.
func (n *foreignScan) inOtherNamespace(pid int) bool {
	own, err := os.Readlink(n.procfs.Path(strconv.Itoa(pid), "ns", "pid"))
	return err == nil && n.init != "" && own != n.init
}

// command returns the name of a process without control characters; empty if it has ended.
func (n *foreignScan) command(pid int) string {
	comm, err := os.ReadFile(n.procfs.Path(strconv.Itoa(pid), "comm"))
	if err != nil {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.TrimSuffix(string(comm), "\n"))
}
