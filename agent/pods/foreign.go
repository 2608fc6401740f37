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
	snap := inv.current.Load()
	if inv.runtime != nil && snap.listed.IsZero() {
		return nil
	}
	s := foreignScan{Inventory: inv, snapshot: snap, left: maxScannedCgroups}
	s.init, _ = os.Readlink(inv.procfs.Path("1", "ns", "pid"))
	s.scan("/")
	slices.SortFunc(s.found, func(a, b ForeignContainer) int { return strings.Compare(a.Cgroup, b.Cgroup) })
	return s.found
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
func (s *foreignScan) scan(at string) []int {
	if s.left--; s.left < 0 {
		return nil
	}
	g, err := s.hierarchy.Open(at)
	if err != nil {
		return nil
	}
	pids, err := g.Procs(nil)
	memory, memoryErr := g.Memory()
	children, childrenErr := g.Children()
	g.Close() // before the recursion, which may be deep
	if err != nil || len(pids) == 0 || s.snapshot.belongsToPod(at) {
		return pids
	}
	own := pids
	named := containerName.MatchString(path.Base(at))
	if !named && childrenErr == nil {
		own = s.without(pids, at, children)
	}
	if at == "/" || slices.ContainsFunc(own, s.isListedInit) || !named && !slices.ContainsFunc(own, s.inOtherNamespace) {
		return pids
	}
	o := ForeignContainer{Cgroup: at, Processes: len(own), Command: s.command(own[0])}
	if memoryErr == nil {
		o.Memory = new(signed(memory.WorkingSet))
	}
	s.found = append(s.found, o)
	return pids
}

// without returns the processes of a cgroup that are in none of its children.
func (s *foreignScan) without(pids []int, at string, children []string) []int {
	var below []int
	for _, name := range children {
		below = append(below, s.scan(path.Join(at, name))...)
	}
	slices.Sort(below)
	return slices.DeleteFunc(slices.Clone(pids), func(pid int) bool {
		_, ok := slices.BinarySearch(below, pid)
		return ok
	})
}

// isListedInit reports whether a process is the first of a container that the runtime lists.
func (s *foreignScan) isListedInit(pid int) bool { return s.snapshot.guard.Inits[pid] != "" }

// inOtherNamespace reports whether a process is in another pid namespace than the node's.
func (s *foreignScan) inOtherNamespace(pid int) bool {
	own, err := os.Readlink(s.procfs.Path(strconv.Itoa(pid), "ns", "pid"))
	return err == nil && s.init != "" && own != s.init
}

// command returns the name of a process without control characters; empty if it has ended.
func (s *foreignScan) command(pid int) string {
	comm, err := os.ReadFile(s.procfs.Path(strconv.Itoa(pid), "comm"))
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
