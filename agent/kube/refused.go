package kube

import (
	"cmp"
	"slices"
	"strings"
)

const (
	// maxRefused is the maximum number of refused facts that are remembered.
	maxRefused = 200
	// maxNamed is how many refused facts the status and the log show.
	maxNamed = 10
)

// refusedPod is a pod whose facts were refused.
type refusedPod struct {
	refusal
	list uint64
}

// refusal is a Refusal before it is formatted.
type refusal struct{ namespace, name, uid, why string }

func (r refusal) compare(other refusal) int {
	return cmp.Or(strings.Compare(r.namespace, other.namespace), strings.Compare(r.name, other.name),
		strings.Compare(r.uid, other.uid), strings.Compare(r.why, other.why))
}

// refuse counts refused facts, and remembers them if they are among the first maxRefused.
func (f *Facts) refuse(p *Pod, why string) {
	f.count++
	uid := printable(p.UID) // not checked, and up to maxPodSize long
	if _, named := f.refused[uid]; named || len(f.refused) < maxRefused {
		f.refused[uid] = refusedPod{refusal{printable(p.Namespace), printable(p.Name), uid, printable(why)}, f.list}
	}
}

// firstRefused returns the first maxNamed facts that are refused now, sorted by name. A peer
// can have all facts refused, so that this formats nothing and sorts only what it returns.
func (f *Facts) firstRefused() []refusal {
	first := make([]refusal, 0, maxNamed+1)
	add := func(r refusal) {
		i, _ := slices.BinarySearchFunc(first, r, refusal.compare)
		if i == maxNamed {
			return
		}
		first = slices.Insert(first, i, r)
		first = first[:min(len(first), maxNamed)]
	}
	for _, r := range f.refused {
		add(r.refusal)
	}
	for uid, known := range f.pods {
		if known.refused != "" {
			add(refusal{known.pod.Namespace, known.pod.Name, uid, known.refused})
		}
		if known.pinned != "" {
			add(refusal{known.pod.Namespace, known.pod.Name, uid, known.pinned})
		}
	}
	return first
}

// shown returns refusals as they are shown.
func shown(first []refusal) (list []Refusal) {
	for _, r := range first {
		list = append(list, Refusal{Pod: printable(r.namespace + "/" + r.name), UID: printable(r.uid), Why: printable(r.why)})
	}
	return list
}
