package kube

// maxUIDs is the maximum number of UIDs in a uidSet.
const maxUIDs = MaxPods

// uidSet is a set of the last maxUIDs UIDs that were added. The zero set is empty.
type uidSet struct {
	uids  map[string]bool
	order []string // the oldest first
}

func (s *uidSet) has(uid string) bool { return s.uids[uid] }

func (s *uidSet) add(uid string) {
	if s.uids[uid] {
		return
	}
	if s.uids == nil {
		s.uids = map[string]bool{}
	}
	if len(s.order) == maxUIDs {
		delete(s.uids, s.order[0])
		s.order = append(s.order[:0], s.order[1:]...)
	}
	s.uids[uid] = true
	s.order = append(s.order, uid)
}
