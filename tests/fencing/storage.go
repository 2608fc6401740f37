package fencing

import (
	"fmt"
	"slices"
	"sync"
)

// Storage knows which machines use which volumes and pods. A machine that hangs or is cut off from the network still
// uses them; one that is off does not.
type Storage struct {
	mu        sync.Mutex
	users     map[string][]string
	conflicts []string
}

func newStorage() *Storage { return &Storage{users: map[string][]string{}} }

// use notes that a machine uses a volume or runs a pod.
func (s *Storage) use(name, machine string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.users[name], machine) {
		return
	}
	if others := s.users[name]; len(others) > 0 {
		s.conflicts = append(s.conflicts, fmt.Sprintf("%s is used by %s and by %s", name, others[0], machine))
	}
	s.users[name] = append(s.users[name], machine)
}

// leave notes that a machine no longer uses a volume or runs a pod.
func (s *Storage) leave(name, machine string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users[name] = slices.DeleteFunc(s.users[name], func(m string) bool { return m == machine })
}

// leaveAll notes that a machine is off.
func (s *Storage) leaveAll(machine string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, users := range s.users {
		s.users[name] = slices.DeleteFunc(users, func(m string) bool { return m == machine })
	}
}

// Conflicts returns the volumes and pods that two machines used at the same time: data was lost.
func (s *Storage) Conflicts() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.conflicts)
}
