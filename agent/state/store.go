package state

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
)

// Store is a directory that holds one state, and the locks on it.
type Store struct {
	dir  string
	lock *os.File // nil while the directory can't be had
	run  *os.File // the lock outside the directory; nil where there is none
	// broken is a file that could not be understood nor moved aside: it is not
	// replaced. Only Load and Save use it, which are not called at the same time.
	broken string
	// missing tells that Load found no state while the directory could not be had: one
	// that is there later, as of a filesystem that was mounted late, was not loaded.
	missing bool
	err     atomic.Pointer[error]
}

// OpenAnyway is Open for an agent that has to start: where the directory can't be
// made, locked or written to, the Store keeps nothing until it can, and Err says why.
// Against a second agent with the same directory it takes a lock in lockDir first,
// which belongs on a filesystem of its own, such as /run. An error is an ErrLocked,
// or says that there is neither lock.
func OpenAnyway(dir, lockDir string) (*Store, error) {
	run, runErr := lockIn(lockDir, runLockName(dir))
	if errors.Is(runErr, ErrLocked) {
		return nil, runErr
	}
	s, err := Open(dir)
	switch {
	case err == nil:
		s.run = run
		s.report(s.probe())
		return s, nil
	case errors.Is(err, ErrLocked) || runErr != nil:
		if run != nil {
			run.Close()
		}
		return nil, errors.Join(err, runErr)
	}
	s = &Store{dir: dir, run: run}
	s.report(err)
	return s, nil
}

// runLockName names the lock outside a state directory after that.
func runLockName(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	h := fnv.New64a()
	h.Write([]byte(dir))
	return fmt.Sprintf("state-%016x.lock", h.Sum64())
}

// Err returns why the state is not kept, nil while it is.
func (s *Store) Err() error {
	if err := s.err.Load(); err != nil {
		return *err
	}
	return nil
}

func (s *Store) report(err error) {
	if err == nil {
		s.err.Store(nil)
		return
	}
	s.err.Store(&err)
}

// probe writes a block to the directory and removes it.
func (s *Store) probe() error {
	path := filepath.Join(s.dir, probeName)
	err := os.WriteFile(path, make([]byte, 4096), 0o600)
	if removeErr := os.Remove(path); err == nil {
		err = removeErr
	}
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// Open makes the directory where it is missing (mode 0700) and locks it. Close
// the Store to give the lock back.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	lock, err := lockIn(dir, lockName)
	if err != nil {
		return nil, err
	}
	s := &Store{dir: dir, lock: lock}
	s.removeTemporary()
	return s, nil
}

// lockIn takes the flock of a file in a directory, which it makes where it is
// missing. A lock file that is there can be locked on a read-only filesystem too.
func lockIn(dir, name string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make directory of lock: %w", err)
	}
	path := filepath.Join(dir, name)
	lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, syscall.EROFS) {
		if there, readErr := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0); readErr == nil {
			lock, err = there, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open state lock: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", path, ErrLocked)
		}
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	return lock, nil
}

// Close gives the locks back.
func (s *Store) Close() error {
	var err error
	for _, lock := range []*os.File{s.lock, s.run} {
		if lock != nil {
			err = errors.Join(err, lock.Close())
		}
	}
	return err
}
