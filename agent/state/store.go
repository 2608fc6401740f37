package state

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
)

// Store is a directory with one state file, and the locks on the directory.
type Store struct {
	dir     string
	lock    *os.File // nil while the directory can't be opened
	runLock *os.File // lock outside the directory; nil for none
	copy    string   // path of the copy; "" for none
	// brokenPath is a file that could neither be parsed nor moved aside; it is not
	// replaced. Only Load and Save access it, and they are never called
	// concurrently.
	brokenPath string
	// missed has the names of the files that Load and LoadFacts did not find while the
	// directory could not be opened. A file that appears later, for example on a
	// filesystem that was mounted late, was then not loaded.
	missed []string
	// prepareMutex is locked by Save and SaveFacts, which may run concurrently.
	prepareMutex sync.Mutex
	err          atomic.Pointer[error]
}

// OpenOrDegrade is Open for an agent that must start in any case. If dir can't be
// made, locked or written to, the Store saves nothing until it can, and Err returns
// the reason. OpenOrDegrade first takes a lock in lockDir, which excludes a second
// agent with the same dir, and also gets the copy. lockDir should be on another filesystem, such as /run.
// The error is ErrLocked, or says that neither lock could be taken.
func OpenOrDegrade(dir, lockDir string) (*Store, error) {
	runLock, runErr := lockIn(lockDir, runName(dir)+".lock")
	if errors.Is(runErr, ErrLocked) {
		return nil, runErr
	}
	s, err := Open(dir)
	switch {
	case err == nil:
		s.runLock, s.copy = runLock, copyPath(dir, lockDir)
		s.report(s.probe())
		return s, nil
	case errors.Is(err, ErrLocked) || runErr != nil:
		if runLock != nil {
			runLock.Close()
		}
		return nil, errors.Join(err, runErr)
	}
	s = &Store{dir: dir, runLock: runLock, copy: copyPath(dir, lockDir)}
	s.report(err)
	return s, nil
}

// runName returns the name of the files outside the state directory dir, derived from its path.
func runName(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	h := fnv.New64a()
	h.Write([]byte(dir))
	return fmt.Sprintf("state-%016x", h.Sum64())
}

// Err returns why the state can't be saved; nil if it can.
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

// Open makes the directory if it is missing (mode 0700) and locks it. Close
// releases the lock.
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

// lockIn locks (flock) a file in dir and makes both if they are missing. An
// existing lock file can also be locked on a read-only filesystem.
func lockIn(dir, name string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make lock directory: %w", err)
	}
	path := filepath.Join(dir, name)
	lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, syscall.EROFS) {
		if existing, readErr := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0); readErr == nil {
			lock, err = existing, nil
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

// Close releases the locks.
func (s *Store) Close() error {
	var err error
	for _, lock := range []*os.File{s.lock, s.runLock} {
		if lock != nil {
			err = errors.Join(err, lock.Close())
		}
	}
	return err
}
