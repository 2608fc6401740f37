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

// deadObject is what can be removed of a pod: a sandbox with all its containers or,
// if a container of the sandbox still runs, one exited container.
type deadObject struct {
	sandbox   cri.Sandbox
	container string // ID; "" for the whole sandbox
	name      string
	since     time.Time // end of the last container, or its creation; zero if unknown
	logs      []string  // log files of its containers
	// containers is the number of containers. A sandbox without any uses almost no
	// space.
	containers int
	evicted    bool
}

// exit is the end of a container and the path of its log.
type exit struct {
	finished time.Time
	log      string
}

// deadObjects returns what may be removed, oldest first: sandboxes that are not
// ready and not a kubelet's, unless a newer sandbox of the same pod exists.
// Sandboxes that evictd evicted come first, regardless of age.
func deadObjects(sandboxes []cri.Sandbox, containers []cri.Container, exits map[string]exit, evicted map[string]EvictedUsage, kubelet evict.Kubelet, minAge time.Duration, now time.Time) []deadObject {
	bySandbox := map[string][]cri.Container{}
	for _, c := range containers {
		bySandbox[c.SandboxID] = append(bySandbox[c.SandboxID], c)
	}
	newest := map[string]cri.Sandbox{}
	for _, s := range sandboxes {
		if n, ok := newest[podKey(&s)]; !ok || newer(&s, &n) {
			newest[podKey(&s)] = s
		}
	}
	var list []deadObject
	for _, s := range sandboxes {
		_, evictedByUs := evicted[s.ID]
		if kubelet.Owns(s.Annotations) || s.Ready && !evictedByUs || newest[podKey(&s)].ID != s.ID {
			continue
		}
		for _, p := range parts(s, bySandbox[s.ID], exits, evictedByUs) {
			if p.evicted || !p.since.IsZero() && now.Sub(p.since) >= minAge {
				list = append(list, p)
			}
		}
	}
	slices.SortFunc(list, compareDead)
	return list
}

// parts returns the removable objects of a sandbox: the whole sandbox if none of
// its containers runs, else each exited container. For an evicted sandbox that is
// still ready it returns nothing while a container runs.
func parts(s cri.Sandbox, containers []cri.Container, exits map[string]exit, evicted bool) []deadObject {
	whole := deadObject{sandbox: s, name: s.Namespace + "/" + s.Name, since: s.Created, containers: len(containers), evicted: evicted}
	var exited []deadObject
	running := false
	for _, c := range containers {
		if c.State != cri.StateExited {
			running = true
			continue
		}
		part := deadObject{sandbox: s, container: c.ID, name: whole.name + "/" + c.Name, since: c.Created, containers: 1}
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
		return []deadObject{whole}
	case s.Ready:
		return nil
	}
	return exited
}

// compareDead orders evicted objects first, then by age.
func compareDead(a, b deadObject) int {
	if a.evicted != b.evicted {
		if a.evicted {
			return -1
		}
		return 1
	}
	return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.sandbox.ID, b.sandbox.ID), cmp.Compare(a.container, b.container))
}

// podKey identifies the pod of a sandbox.
func podKey(s *cri.Sandbox) string { return s.Namespace + "\x00" + s.Name + "\x00" + s.UID }

func newer(a, b *cri.Sandbox) bool {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(a.ID, b.ID)) > 0
}

// logDir returns the directory that has only the pod's logs, recognized by its
// name, or "" if the logs are elsewhere:
//
//	/var/log/pods/<namespace>_<name>_<uid>/<container>/0.log
func (d *deadObject) logDir() string {
	if d.sandbox.UID == "" {
		return ""
	}
	name := d.sandbox.Namespace + "_" + d.sandbox.Name + "_" + d.sandbox.UID
	for _, log := range d.logs {
		for dir := filepath.Dir(log); strings.Count(dir, "/") > 1; dir = filepath.Dir(dir) {
			if filepath.Base(dir) == name {
				return dir
			}
		}
	}
	return ""
}
