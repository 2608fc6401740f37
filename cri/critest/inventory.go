package critest

import (
	"slices"
	"time"

	"github.com/evictd/evictd/cri"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// AddPod adds a pod and returns it with its defaults filled in. It panics if the ID
// exists.
func (s *Server) AddPod(p Pod) Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	p = p.withDefaults(s.podsAdded)
	s.podsAdded++
	if s.sandbox(p.ID) != nil {
		panic("critest: duplicate sandbox " + p.ID)
	}
	box := &sandbox{Pod: p}
	box.Containers = nil
	s.pods = append(s.pods, box)
	filled := make([]Container, len(p.Containers))
	for i, c := range p.Containers {
		filled[i] = s.add(box, c)
	}
	p.Containers = filled
	return p
}

// AddContainer adds a container to an existing sandbox and returns it with its
// defaults filled in.
func (s *Server) AddContainer(sandboxID string, c Container) Container {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.add(s.mustSandbox(sandboxID), c)
}

func (s *Server) add(box *sandbox, c Container) Container {
	c = c.withDefaults(box, len(box.containers))
	if s.byID[c.ID] != nil {
		panic("critest: duplicate container " + c.ID)
	}
	added := &container{Container: c, sandbox: box}
	added.set(c.State)
	box.containers = append(box.containers, added)
	s.byID[c.ID] = added
	s.emit(added, runtimev1.ContainerEventType_CONTAINER_CREATED_EVENT)
	if c.State == cri.StateRunning {
		s.emit(added, runtimev1.ContainerEventType_CONTAINER_STARTED_EVENT)
	}
	return c
}

// RemovePod removes a pod and its containers, as another CRI client would. It panics
// if the ID is unknown.
func (s *Server) RemovePod(sandboxID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeSandbox(s.mustSandbox(sandboxID))
}

// RemoveContainer removes a container. It panics if the ID is unknown.
func (s *Server) RemoveContainer(containerID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeContainer(s.mustContainer(containerID))
}

// SetState sets the state of a container, as if it had started or exited by itself.
// It panics if the ID is unknown.
func (s *Server) SetState(containerID string, state cri.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setState(s.mustContainer(containerID), state)
}

// SetReady sets whether a sandbox is ready, without a change of its containers. It
// panics if the ID is unknown.
func (s *Server) SetReady(sandboxID string, ready bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mustSandbox(sandboxID).NotReady = !ready
}

// State returns a container's state, and whether the container exists.
func (s *Server) State(containerID string) (cri.State, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.byID[containerID]
	if c == nil {
		return cri.StateUnknown, false
	}
	return c.State, true
}

// Ready returns whether a sandbox is ready, and whether it exists.
func (s *Server) Ready(sandboxID string) (ready, exists bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	box := s.sandbox(sandboxID)
	return box != nil && !box.NotReady, box != nil
}

func (s *Server) sandbox(id string) *sandbox {
	for _, box := range s.pods {
		if box.ID == id {
			return box
		}
	}
	return nil
}

func (s *Server) mustSandbox(id string) *sandbox {
	box := s.sandbox(id)
	if box == nil {
		panic("critest: no sandbox " + id)
	}
	return box
}

func (s *Server) mustContainer(id string) *container {
	c := s.byID[id]
	if c == nil {
		panic("critest: no container " + id)
	}
	return c
}

func (s *Server) setState(c *container, state cri.State) {
	c.set(state)
	switch state {
	case cri.StateRunning:
		s.emit(c, runtimev1.ContainerEventType_CONTAINER_STARTED_EVENT)
	case cri.StateExited:
		s.emit(c, runtimev1.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
}

// exit sets a running container to exited and calls the OnStop function.
func (s *Server) exit(c *container, grace time.Duration) {
	if c.State != cri.StateRunning {
		return
	}
	if s.onStop != nil {
		s.onStop(c.ID, grace)
	}
	s.setState(c, cri.StateExited)
}

func (s *Server) removeContainer(c *container) {
	delete(s.byID, c.ID)
	c.sandbox.containers = slices.DeleteFunc(c.sandbox.containers, func(other *container) bool { return other == c })
	s.emit(c, runtimev1.ContainerEventType_CONTAINER_DELETED_EVENT)
}

func (s *Server) removeSandbox(box *sandbox) {
	for len(box.containers) > 0 {
		s.removeContainer(box.containers[0])
	}
	s.pods = slices.DeleteFunc(s.pods, func(other *sandbox) bool { return other == box })
}

// emit sends an event to the subscribers. As in containerd, a slow subscriber loses
// events.
func (s *Server) emit(c *container, what runtimev1.ContainerEventType) {
	if len(s.subs) == 0 {
		return
	}
	event := &runtimev1.ContainerEventResponse{
		ContainerId:        c.ID,
		ContainerEventType: what,
		CreatedAt:          time.Now().UnixNano(),
		PodSandboxStatus:   c.sandbox.status(),
	}
	for _, sibling := range c.sandbox.containers {
		event.ContainersStatuses = append(event.ContainersStatuses, sibling.status(s.flavor))
	}
	for sub := range s.subs {
		select {
		case sub <- event:
		default:
		}
	}
}
