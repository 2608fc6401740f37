// Package state keeps what must survive a restart of the agent: the decision's
// memory (grace timers, the transition window, victims on their way), a shutdown
// of the node that goes on, the last records and node-level reclaims, and which
// processes are the kubelets that no kill may reach.
//
// The file is replaced as a whole, so that a crash leaves the old one or the
// new one. It carries the boot id and the time since boot: after a reboot
// nothing of the decision holds any more, and across a pause of ten seconds or
// more nobody can say that a threshold stayed crossed. Records are kept in any
// case.
//
// A directory that can't be written to does not keep the agent from starting. It then
// runs without persistence, which [Store.Err] reports, tries again at each Save, and
// its lock against a second agent lies in another directory.
//
// Nothing here runs on the way from a crossing to a kill.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/shutdown"
)

const (
	fileName = "state.json"
	lockName = "lock"
	// newName is of the next state, while it is written.
	newName = fileName + ".new"
	// probeName is of a file that shows whether the directory can be written to.
	probeName = "probe"
	// corrupt is the end of the name of what could not be used.
	corrupt = ".corrupt"
	// unread is the end of the name of what was not there when the state was loaded.
	unread = ".unread"
	format = 1
	// longestAbsence is how long the agent may have been away for a threshold
	// to count as crossed all the while.
	longestAbsence = 10 * time.Second
	// largest bounds what is read back: far more than fifty records need.
	largest = 16 << 20
)

// ErrLocked is what Open returns where another process holds the directory.
var ErrLocked = errors.New("state directory is in use by another evictd")

// Clock is the time by which a state is kept: of one boot, and as the wall
// shows it.
type Clock struct {
	BootID string
	Uptime time.Duration // CLOCK_BOOTTIME
	Now    time.Time
}

// NotKept is what evictd reports where it can't write its state.
const NotKept = "state is not kept, a restart would lose timers, victims under way and records"

// Saved is what a Store keeps.
type Saved struct {
	Decision evict.State    `json:"decision"`
	Records  []evict.Record `json:"records"`
	// Reclaims are the last node-level reclaims that have ended, the oldest first.
	Reclaims []evict.ReclaimReport `json:"reclaims,omitempty"`
	// Shutdown is the shutdown that goes on, or the last one of this boot.
	Shutdown shutdown.State `json:"shutdown,omitzero"`
	// GoingDown tells that the node was on its way down when this was written,
	// Stopped that whoever wrote it was asked to end.
	GoingDown bool `json:"goingDown,omitempty"`
	Stopped   bool `json:"stopped,omitempty"`
	// Last is what became of the boot before this one; nil is not judged yet.
	Last *shutdown.Last `json:"last,omitempty"`
	// Before is what the last run of another boot left, where this is of another
	// boot; it is not kept.
	Before *shutdown.Before `json:"-"`
	// Images are what is known of the use of images. What is kept of its times is how
	// long ago they were.
	Images []evict.ImageUse `json:"images,omitempty"`
	// Kubelets are the kubelets that no kill may reach, also where one has been moved
	// into a pod's cgroup and would not be found again.
	Kubelets []evict.KubeletProcess `json:"kubelets,omitempty"`
}

// eachTime calls f with each time that is known.
func eachTime(uses []evict.ImageUse, f func(*time.Time)) {
	for i := range uses {
		f(&uses[i].First)
		if !uses[i].Last.IsZero() {
			f(&uses[i].Last)
		}
	}
}

type file struct {
	Format int           `json:"format"`
	BootID string        `json:"bootID"`
	Uptime time.Duration `json:"uptimeNanoseconds"`
	Now    time.Time     `json:"now"`
	Saved
}

// Save replaces the kept state. The clock's Now must be of the time at which
// the state's times were taken from.
func (s *Store) Save(saved Saved, clock Clock) error {
	err := s.save(saved, clock)
	s.report(err)
	return err
}

func (s *Store) save(saved Saved, clock Clock) error {
	if err := s.ready(); err != nil {
		return err
	}
	saved.Decision = saved.Decision.Clone()
	// Times as the wall shows them now, whatever happened to it since they
	// were taken: their distance from now is by the monotonic clock.
	wall := clock.Now.Round(0)
	move := func(t *time.Time) { *t = wall.Add(t.Sub(clock.Now)) }
	saved.Decision.EachTime(move)
	saved.Shutdown = saved.Shutdown.Clone()
	saved.Shutdown.EachTime(move)
	saved.Images = slices.Clone(saved.Images)
	eachTime(saved.Images, move)
	content, err := json.Marshal(file{format, clock.BootID, clock.Uptime, wall, saved})
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	return s.replace(content)
}

// ready has the directory and its lock where Open could not, and moves a broken file
// aside where Load could not.
func (s *Store) ready() error {
	if s.lock == nil {
		opened, err := Open(s.dir)
		if err != nil {
			return err
		}
		s.lock = opened.lock
	}
	if s.missing {
		path := filepath.Join(s.dir, fileName)
		if err := os.Rename(path, path+unread); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("set aside a state that was not there at the start: %w", err)
		}
		s.missing = false
	}
	if s.broken != "" {
		if err := os.Rename(s.broken, s.broken+corrupt); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("set aside a state that is not usable: %w", err)
		}
		s.broken = ""
	}
	return nil
}

// replace writes a new file and renames it. It has one name, so that crashes in the
// middle of writing leave one file at most.
func (s *Store) replace(content []byte) (err error) {
	path := filepath.Join(s.dir, newName)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(path)
		}
	}()
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(path, filepath.Join(s.dir, fileName))
	}
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// removeTemporary removes what a run has left that ended while it wrote: newName and,
// of versions before, state.json.<digits>.
func (s *Store) removeTemporary() {
	left, _ := filepath.Glob(filepath.Join(s.dir, fileName+".[0-9]*"))
	for _, path := range append(left, filepath.Join(s.dir, newName)) {
		os.Remove(path) // a file that stays does no harm
	}
}

// CorruptError tells of a state that could not be read or understood. It was moved
// to Kept, so that nothing is lost; where that is empty, it could not be moved and is
// where it was.
type CorruptError struct {
	Path, Kept string
	Err        error
}

func (e *CorruptError) Error() string {
	if e.Kept == "" {
		return fmt.Sprintf("state %s is not usable and could not be set aside, so that no state is kept: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("state %s is not usable and was kept as %s: %v", e.Path, e.Kept, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// Load returns what was kept, with its times moved to the clock's, as far as
// it is still valid; note says what was dropped and why, and is empty where
// nothing was. Where nothing is kept Saved is empty and err is nil. The error is a
// *CorruptError, with which the agent can go on from nothing.
func (s *Store) Load(clock Clock) (saved Saved, note string, err error) {
	path := filepath.Join(s.dir, fileName)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		s.missing = s.lock == nil
		return Saved{}, "", nil
	}
	if err != nil {
		return Saved{}, "", s.setAside(path, err)
	}
	if !info.Mode().IsRegular() || info.Size() > largest {
		return Saved{}, "", s.setAside(path, fmt.Errorf("not a regular file of at most %d bytes", largest))
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return Saved{}, "", s.setAside(path, err)
	}
	var f file
	if err := json.Unmarshal(content, &f); err != nil {
		return Saved{}, "", s.setAside(path, err)
	}
	if f.Format != format {
		return Saved{}, "", s.setAside(path, fmt.Errorf("format %d, not %d", f.Format, format))
	}
	return f.restore(clock)
}

func (f *file) restore(clock Clock) (Saved, string, error) {
	absence := clock.Uptime - f.Uptime
	switch {
	case f.BootID != clock.BootID:
		before := &shutdown.Before{At: f.Now, GoingDown: f.GoingDown, Stopped: f.Stopped}
		return Saved{Records: f.Records, Reclaims: f.Reclaims, Before: before}, "timers and victims dropped: they are of another boot", nil
	case absence < 0:
		return Saved{Records: f.Records, Reclaims: f.Reclaims, Last: f.Last}, "timers and victims dropped: they are of a later time of this boot", nil
	}
	move := func(t *time.Time) { *t = clock.Now.Add(t.Sub(f.Now) - absence) }
	f.Decision.EachTime(move)
	f.Shutdown.EachTime(move)
	eachTime(f.Images, move)
	note := ""
	if timers := len(f.Decision.Timers); absence >= longestAbsence && timers > 0 {
		// A hard memory threshold that was answered stays so while it is met.
		f.Decision.Timers = slices.DeleteFunc(f.Decision.Timers, func(t evict.Timer) bool {
			return t.Threshold.Soft || !t.Threshold.Signal.IsMemory() || !t.Past
		})
		if len(f.Decision.Timers) == 0 {
			f.Decision.Timers = nil
		}
		if len(f.Decision.Timers) < timers {
			note = fmt.Sprintf("grace timers dropped: evictd was away for %s", absence.Round(time.Millisecond))
		}
	}
	// A reclaim that was asked for has nobody left who would report it.
	f.Decision.Reclaim = nil
	return f.Saved, note, nil
}

// setAside moves a file away that can't be used. Where that fails nothing is kept: a
// Save would replace what somebody may want to look at.
func (s *Store) setAside(path string, cause error) error {
	kept := path + corrupt
	if err := os.Rename(path, kept); err != nil {
		s.broken = path
		e := &CorruptError{Path: path, Err: fmt.Errorf("%w; %w", cause, err)}
		s.report(e)
		return e
	}
	return &CorruptError{Path: path, Kept: kept, Err: cause}
}
