// Package state saves what must survive a restart of the agent: the state of the
// decision (grace timers, the transition window, victims in flight), a node
// shutdown in progress, the last records and node-level reclaims, the orders to
// evictd-kube, and the kubelet processes that no kill may reach.
//
// On a slow disk that takes seconds. A copy that is not synced is therefore written first, in another
// directory that should be below /run ([Store.SaveCopy]): an evictd that is killed soon after a decision
// must know its victim when it starts again, or it would evict another pod as well.
//
// The file is replaced as a whole by rename, so after a crash the directory has
// either the old file or the new one. The file carries the boot id and
// CLOCK_BOOTTIME. After a reboot the decision's state and the orders are dropped.
// After an absence of ten seconds or more the grace timers are dropped, because it
// is unknown whether the threshold stayed crossed; those of hard disk and PID thresholds
// after the time for which they are left to a kubelet. Records are kept in both cases.
//
// A directory that can't be written to does not prevent the agent from starting.
// The agent then runs without persistence, [Store.Err] returns the reason, each
// Save tries again, and the lock against a second agent lies in another directory.
//
// Nothing in this package runs between a crossing and a kill.
package state

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/shutdown"
)

const (
	fileName = "state.json"
	lockName = "lock"
	// newSuffix is appended to the name of a file while its new content is written.
	newSuffix = ".new"
	// probeName is the file that probe writes to test whether the directory is
	// writable.
	probeName = "probe"
	// corruptSuffix is appended to the name of a file that could not be used.
	corruptSuffix = ".corrupt"
	// missedSuffix is appended to the name of a state that appeared only after
	// Load, for example when its filesystem was mounted late.
	missedSuffix = ".unread"
	format       = 1
	// maxAbsence is the longest absence of the agent after which a threshold still
	// counts as continuously crossed. It is the kubelet's eviction monitoring
	// period: the kubelet would not notice a change within it either.
	maxAbsence = 10 * time.Second
	// maxFileSize bounds what Load reads: far more than fifty records need.
	maxFileSize = 16 << 20
)

// ErrLocked is returned by Open when another process has locked the directory.
var ErrLocked = errors.New("state directory is in use by another evictd")

// Clock is the time of a Save or Load, by the clock of the boot and by the wall
// clock.
type Clock struct {
	BootID string
	Uptime time.Duration // CLOCK_BOOTTIME
	Now    time.Time
}

// NotSavedMessage is the log message for a state that can't be written.
const NotSavedMessage = "state is not saved; a restart would lose timers, victims in flight and records"

// Saved is the content of a state file.
type Saved struct {
	Decision evict.State    `json:"decision"`
	Records  []evict.Record `json:"records"`
	// Reclaims are the last node-level reclaims that have ended, oldest first.
	Reclaims []evict.ReclaimReport `json:"reclaims,omitempty"`
	// Shutdown is the shutdown in progress, or the last one of this boot.
	Shutdown shutdown.State `json:"shutdown,omitzero"`
	// GoingDown reports that the node was shutting down when this state was saved,
	// and Stopped that evictd had been asked to end.
	GoingDown bool `json:"goingDown,omitempty"`
	Stopped   bool `json:"stopped,omitempty"`
	// LastBoot is how the boot before this one ended; nil while that is undecided.
	LastBoot *shutdown.LastBoot `json:"last,omitempty"`
	// PreviousRun is what the last run of the previous boot saved, if the file is from
	// another boot. It is not saved.
	PreviousRun *shutdown.PreviousRun `json:"-"`
	// Images is the usage history of the images. The file stores the age of each
	// time, so that setting the wall clock does not make an image older.
	Images []evict.ImageUse `json:"images,omitempty"`
	// Kubelets are the kubelet processes that no kill may reach. They are saved
	// because a kubelet that was moved into a pod's cgroup would not be found
	// again.
	Kubelets []evict.KubeletProcess `json:"kubelets,omitempty"`
	// Orders are the orders to evictd-kube that have not ended. A reboot ends them with the
	// fences of their pods.
	Orders []kube.SavedOrder `json:"orders,omitempty"`
}

// eachOrderTime calls f with each time of orders that is set.
func eachOrderTime(orders []kube.SavedOrder, f func(*time.Time)) {
	for i := range orders {
		orders[i].EachTime(f)
	}
}

// eachImageTime calls f with each time of uses that is set.
func eachImageTime(uses []evict.ImageUse, f func(*time.Time)) {
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

// Save replaces the saved state. clock.Now must be read together with the times in
// saved.
func (s *Store) Save(saved Saved, clock Clock) error {
	err := s.save(saved, clock)
	s.report(err)
	return err
}

func (s *Store) save(saved Saved, clock Clock) error {
	if err := s.prepare(); err != nil {
		return err
	}
	content, err := encode(saved, clock)
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(s.dir, fileName), true, writing(content))
}

// writing returns a function that writes content.
func writing(content []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	}
}

// encode returns the content of a state file.
func encode(saved Saved, clock Clock) ([]byte, error) {
	saved.Decision = saved.Decision.Clone()
	// Convert times to the present wall clock: their distance from now is by the
	// monotonic clock, whatever happened to the wall clock since they were taken.
	wall := clock.Now.Round(0)
	move := func(t *time.Time) { *t = wall.Add(t.Sub(clock.Now)) }
	saved.Decision.EachTime(move)
	saved.Shutdown = saved.Shutdown.Clone()
	saved.Shutdown.EachTime(move)
	saved.Images = slices.Clone(saved.Images)
	eachImageTime(saved.Images, move)
	saved.Orders = slices.Clone(saved.Orders)
	eachOrderTime(saved.Orders, move)
	content, err := json.Marshal(file{format, clock.BootID, clock.Uptime, wall, saved})
	if err != nil {
		return nil, fmt.Errorf("encode state: %w", err)
	}
	return content, nil
}

// noteMissed records a file that does not exist, if it may appear with the directory.
func (s *Store) noteMissed(name string) {
	if s.lock == nil {
		s.missed = append(s.missed, name)
	}
}

// prepare retries what failed earlier: it opens and locks the directory where Open
// could not, and moves aside a file that Load could not move, or never saw.
func (s *Store) prepare() error {
	s.prepareMutex.Lock()
	defer s.prepareMutex.Unlock()
	if s.lock == nil {
		opened, err := Open(s.dir)
		if err != nil {
			return err
		}
		s.lock = opened.lock
	}
	for len(s.missed) > 0 {
		path := filepath.Join(s.dir, s.missed[0])
		if err := os.Rename(path, path+missedSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("move aside a state file that appeared after the start: %w", err)
		}
		s.missed = s.missed[1:]
	}
	if s.brokenPath != "" {
		if err := os.Rename(s.brokenPath, s.brokenPath+corruptSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("move aside an unusable state file: %w", err)
		}
		s.brokenPath = ""
	}
	return nil
}

// replaceFile writes a new file and renames it to name, a path. sync means that the content is then on
// the disk. The temporary file has a fixed name, so crashes while writing leave at most one.
func replaceFile(name string, sync bool, write func(io.Writer) error) (err error) {
	path := name + newSuffix
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(path)
		}
	}()
	err = write(f)
	if err == nil && sync {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(path, name)
	}
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// removeTemporary removes the temporary files of runs that ended while writing:
// those with newSuffix and, from earlier versions, state.json.<digits>.
func (s *Store) removeTemporary() {
	left, _ := filepath.Glob(filepath.Join(s.dir, fileName+".[0-9]*"))
	for _, path := range append(left, filepath.Join(s.dir, fileName+newSuffix), filepath.Join(s.dir, factsName+newSuffix)) {
		os.Remove(path) // a file that can't be removed does no harm
	}
}

// CorruptError reports a state file that could not be read or parsed. The file was
// moved to MovedTo for inspection. If MovedTo is empty, the file could not be moved and
// is still at Path. Copied is set if Load has used the copy of the state instead.
type CorruptError struct {
	Path, MovedTo string
	Copied        bool
	Err           error
}

func (e *CorruptError) Error() string {
	what := "was moved to " + e.MovedTo
	if e.MovedTo == "" {
		what = "could not be moved aside; state is not saved"
	}
	if e.Copied {
		what += "; its copy is used"
	}
	return fmt.Sprintf("state file %s is unusable and %s: %v", e.Path, what, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// Load returns the saved state as far as it is still valid, with its times
// converted to clock: that of the copy, if it is the newer one of this boot, or the state is damaged. note
// says what was dropped and why; it is empty if nothing was dropped. Without a state file Load returns an
// empty Saved and a nil error. Any error is a *CorruptError, and the agent can continue with what Load returns.
func (s *Store) Load(clock Clock) (saved Saved, note string, err error) {
	path := filepath.Join(s.dir, fileName)
	f, err := read(path)
	var damage *CorruptError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.noteMissed(fileName)
	case err != nil:
		damage = s.moveAside(path, err)
	}
	if copied := s.readCopy(clock); copied != nil && (f == nil || f.BootID != copied.BootID || f.Uptime < copied.Uptime) {
		f = copied
	}
	if f != nil {
		saved, note = f.restore(clock)
	}
	if damage != nil {
		damage.Copied = f != nil
		return saved, note, damage
	}
	return saved, note, nil
}

// read returns the content of a state file.
func read(path string) (*file, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFileSize {
		return nil, fmt.Errorf("not a regular file of at most %d bytes", maxFileSize)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var f file
	if err := json.Unmarshal(content, &f); err != nil {
		return nil, err
	}
	if f.Format != format {
		return nil, fmt.Errorf("format %d, not %d", f.Format, format)
	}
	return &f, nil
}

// restore returns the state as Load does.
func (f *file) restore(clock Clock) (saved Saved, note string) {
	absence := clock.Uptime - f.Uptime
	switch {
	case f.BootID != clock.BootID:
		before := &shutdown.PreviousRun{At: f.Now, GoingDown: f.GoingDown, Stopped: f.Stopped}
		return Saved{Records: f.Records, Reclaims: f.Reclaims, PreviousRun: before}, "timers and victims dropped: they are from another boot"
	case absence < 0:
		return Saved{Records: f.Records, Reclaims: f.Reclaims, LastBoot: f.LastBoot}, "timers and victims dropped: they are from a later time of this boot"
	}
	move := func(t *time.Time) { *t = clock.Now.Add(t.Sub(f.Now) - absence) }
	f.Decision.EachTime(move)
	f.Shutdown.EachTime(move)
	eachImageTime(f.Images, move)
	eachOrderTime(f.Orders, move)
	if timers := len(f.Decision.Timers); absence >= maxAbsence && timers > 0 {
		// A hard memory threshold that was acted on stays Active while it is met. One on a disk or
		// PIDs that is left to a kubelet may be met for some minutes, which must also end if evictd
		// restarts again and again.
		f.Decision.Timers = slices.DeleteFunc(f.Decision.Timers, func(t evict.Timer) bool {
			if s := t.Threshold.Signal; !s.IsMemory() {
				return t.Threshold.Soft || absence >= evict.KubeletTimeout(s)
			}
			return t.Threshold.Soft || !t.Active
		})
		if len(f.Decision.Timers) == 0 {
			f.Decision.Timers = nil
		}
		if len(f.Decision.Timers) < timers {
			note = fmt.Sprintf("grace timers dropped: evictd was not running for %s", absence.Round(time.Millisecond))
		}
	}
	for i := range f.Decision.DryRunVictims {
		// An earlier version did not save the cause, only the signal or the contention.
		v := &f.Decision.DryRunVictims[i]
		v.Cause = cmp.Or(v.Cause, string(v.Contention), v.Signal.String())
	}
	// The goroutine that would have reported a reclaim in progress is gone.
	f.Decision.Reclaim = nil
	return f.Saved, note
}

// moveAside renames a file that can't be used. If the rename fails, nothing is
// saved from then on, because a Save would overwrite a file that an operator may
// want to inspect.
func (s *Store) moveAside(path string, cause error) *CorruptError {
	kept := path + corruptSuffix
	if err := os.Rename(path, kept); err != nil {
		s.brokenPath = path
		e := &CorruptError{Path: path, Err: fmt.Errorf("%w; %w", cause, err)}
		s.report(e)
		return e
	}
	return &CorruptError{Path: path, MovedTo: kept, Err: cause}
}
