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

// Outsider is a container on this host that the runtime does not list, and that is never
// killed.
type Outsider struct {
	Cgroup string
	// Processes counts those in it and below it.
	Processes int
	// Memory is its working set in bytes, nil where it can't be read.
	Memory *int64
	// Command is the name of the process with the lowest pid.
	Command string
}

// containerName is how container engines name a container's cgroup: after its
// ID, or in a way of their own.
var containerName = regexp.MustCompile(`(^|[^0-9a-f])[0-9a-f]{64}([^0-9a-f]|$)|^lxc\.payload\.|^machine-.*\.scope$`)

// NotOurs returns the containers on this host that the runtime does not list, by their
// cgroup's path: what has the name of a container, or holds processes of another
// pid namespace than the node's. It reads the whole tree. Before the first
// complete list nothing can be said of any.
func (i *Inventory) NotOurs() []Outsider {
	w := i.world.Load()
	if i.runtime != nil && w.listed.IsZero() {
		return nil
	}
	l := notOurs{Inventory: i, world: w, left: maxOutside}
	l.init, _ = os.Readlink(i.procfs.Path("1", "ns", "pid"))
	l.look("/")
	slices.SortFunc(l.found, func(a, b Outsider) int { return strings.Compare(a.Cgroup, b.Cgroup) })
	return l.found
}

// notOurs is a look for containers that nobody lists.
type notOurs struct {
	*Inventory
	world *world
	init  string // the node's pid namespace, "" where it is not shown
	left  int    // cgroups that may still be read
	found []Outsider
}

// look returns the processes of a cgroup and of all below it, and notes the
// containers among those cgroups.
func (n *notOurs) look(at string) []int {
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
	g.Close() // not held on the way down, which may be long
	if err != nil || len(pids) == 0 || n.world.isPods(at) {
		return pids
	}
	own := pids
	named := containerName.MatchString(path.Base(at))
	if !named && childrenErr == nil {
		own = n.without(pids, at, children)
	}
	if at == "/" || slices.ContainsFunc(own, n.listed) || !named && !slices.ContainsFunc(own, n.elsewhere) {
		return pids
	}
	o := Outsider{Cgroup: at, Processes: len(own), Command: n.command(own[0])}
	if memoryErr == nil {
		o.Memory = new(signed(memory.WorkingSet))
	}
	n.found = append(n.found, o)
	return pids
}

// without returns the processes of a cgroup that are in none of those below it.
func (n *notOurs) without(pids []int, at string, children []string) []int {
	var below []int
	for _, name := range children {
		below = append(below, n.look(path.Join(at, name))...)
	}
	slices.Sort(below)
	return slices.DeleteFunc(slices.Clone(pids), func(pid int) bool {
		_, ok := slices.BinarySearch(below, pid)
		return ok
	})
}

// listed reports whether a process is the first of a container that the runtime
// lists.
func (n *notOurs) listed(pid int) bool { return n.world.guard.Inits[pid] != "" }

// elsewhere reports whether a process is in another pid namespace than the
// node's.
func (n *notOurs) elsewhere(pid int) bool {
	own, err := os.Readlink(n.procfs.Path(strconv.Itoa(pid), "ns", "pid"))
	return err == nil && n.init != "" && own != n.init
}

// command returns a process's name without what a terminal would obey, empty
// if it has gone.
func (n *notOurs) command(pid int) string {
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
