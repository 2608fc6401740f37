package hot

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/kernel/epoll"
)

// sources are the lanes' descriptors that the thread waits for. Adding and removing can
// block; the thread never does.
type sources struct {
	mu   sync.Mutex // serializes add and remove
	next uint64
	// byToken points to an immutable map.
	byToken atomic.Pointer[map[uint64]lanes.Source]
	// iterations is odd while the thread may be calling a source.
	iterations atomic.Uint64
}

var errUnknownSource = errors.New("source was not added")

func (s *sources) add(p *epoll.Poller, source lanes.Source) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	token := s.next
	s.change(func(all map[uint64]lanes.Source) { all[token] = source })
	if err := p.Add(source.FD(), source.Events(), token); err != nil {
		s.change(func(all map[uint64]lanes.Source) { delete(all, token) })
		return fmt.Errorf("hot path: %w", err)
	}
	return nil
}

func (s *sources) remove(p *epoll.Poller, source lanes.Source) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := errUnknownSource
	for token, known := range *s.byToken.Load() {
		if known == source {
			err = p.Remove(source.FD())
			s.change(func(all map[uint64]lanes.Source) { delete(all, token) })
			break
		}
	}
	// An iteration that began earlier may still be calling the source.
	for iteration := s.iterations.Load(); iteration%2 == 1 && s.iterations.Load() == iteration; {
		time.Sleep(100 * time.Microsecond)
	}
	if err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("hot path: remove source: %w", err)
	}
	return nil
}

// change publishes a copy of the map that f has changed.
func (s *sources) change(f func(map[uint64]lanes.Source)) {
	all := maps.Clone(*s.byToken.Load())
	f(all)
	s.byToken.Store(&all)
}

// source returns the source of an epoll token; nil if it was removed.
func (s *sources) source(token uint64) lanes.Source { return (*s.byToken.Load())[token] }
