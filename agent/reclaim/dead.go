package reclaim

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri"
)

// remains is what is left of a pod, or a part of it: a sandbox with all that is
// in it, or where that still runs something, a container.
type remains struct {
	sandbox   cri.Sandbox
	container string // ID; "" is the sandbox as a whole
	name      string
	since     time.Time // when the last of it ended, or else began; zero is not known
	logs      []string  // of its containers
	// containers is how many the sandbox has; one without any takes up next to nothing.
	containers int
	evicted    bool
}

// exit is when and where a container ended.
type exit struct {
	finished time.Time
	log      string
}

// dead returns what may be removed, the oldest first: of sandboxes that are not
// ready and that no kubelet made, unless a newer one of the same pod exists. What
// evictd itself evicted goes first, and need not have any age.
func dead(sandboxes []cri.Sandbox, containers []cri.Container, exits map[string]exit, evicted map[string]Held, kubelet evict.Kubelet, minAge time.Duration, now time.Time) []remains {
	in := map[string][]cri.Container{}
	for _, c := range containers {
		in[c.SandboxID] = append(in[c.SandboxID], c)
	}
	newest := map[string]cri.Sandbox{}
	for _, s := range sandboxes {
		if n, ok := newest[podOf(&s)]; !ok || newer(&s, &n) {
			newest[podOf(&s)] = s
		}
	}
	var list []remains
	for _, s := range sandboxes {
		_, ours := evicted[s.ID]
		if kubelet.Owns(s.Annotations) || s.Ready && !ours || newest[podOf(&s)].ID != s.ID {
			continue
		}
		for _, p := range parts(s, in[s.ID], exits, ours) {
			if p.evicted || !p.since.IsZero() && now.Sub(p.since) >= minAge {
				list = append(list, p)
			}
		}
	}
	slices.SortFunc(list, older)
	return list
}

// parts returns what a sandbox could be removed as: as a whole, where none of its
// containers runs, or else each container that has exited. Of a sandbox that was
// evicted and is still ready it returns nothing until no container runs.
func parts(s cri.Sandbox, containers []cri.Container, exits map[string]exit, evicted bool) []remains {
	whole := remains{sandbox: s, name: s.Namespace + "/" + s.Name, since: s.Created, containers: len(containers), evicted: evicted}
	var exited []remains
	running := false
	for _, c := range containers {
		if c.State != cri.StateExited {
			running = true
			continue
		}
		part := remains{sandbox: s, container: c.ID, name: whole.name + "/" + c.Name, since: c.Created, containers: 1}
		if e, ok := exits[c.ID]; ok {
			if !e.finished.IsZero() {
				part.since = e.finished
			}
			if e.log != "" {
				part.logs = []string{e.log}
			}
		}
		if part.since.After(whole.since) {
			whole.since = part.since
		}
		whole.logs = append(whole.logs, part.logs...)
		exited = append(exited, part)
	}
	switch {
	case !running:
		return []remains{whole}
	case s.Ready:
		return nil
	}
	return exited
}

// older puts what was evicted first, then by age.
func older(a, b remains) int {
	if a.evicted != b.evicted {
		if a.evicted {
			return -1
		}
		return 1
	}
	return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.sandbox.ID, b.sandbox.ID), cmp.Compare(a.container, b.container))
}

// podOf tells whether two sandboxes are of one pod.
func podOf(s *cri.Sandbox) string { return s.Namespace + "\x00" + s.Name + "\x00" + s.UID }

func newer(a, b *cri.Sandbox) bool {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(a.ID, b.ID)) > 0
}

// logDir returns the directory that holds the pod's logs and nothing else, by its
// name, "" where they are elsewhere:
//
//	/var/log/pods/<namespace>_<name>_<uid>/<container>/0.log
func (r *remains) logDir() string {
	if r.sandbox.UID == "" {
		return ""
	}
	name := r.sandbox.Namespace + "_" + r.sandbox.Name + "_" + r.sandbox.UID
	for _, log := range r.logs {
		for dir := filepath.Dir(log); strings.Count(dir, "/") > 1; dir = filepath.Dir(dir) {
			if filepath.Base(dir) == name {
				return dir
			}
		}
	}
	return ""
}
