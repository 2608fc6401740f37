package clusterlabs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/evictd/evictd/agent/fence/plan"
)

const (
	// metadataTimeout bounds a call of Metadata.
	metadataTimeout = 10 * time.Second
	// maxMetadata is the length limit of metadata in bytes.
	maxMetadata = 1 << 20
)

// Find returns the path of an installed agent. The error is fs.ErrNotExist if there is none. Agents that another user
// could replace are refused: evictd-controller gives them the passwords of the devices.
func Find(directory, name string) (string, error) {
	if !plan.FenceAgent(name) {
		return "", fmt.Errorf("find fence agent %q: its name is not fence_NAME", name)
	}
	path := filepath.Join(directory, name)
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("find fence agent: %w", err)
	}
	for _, p := range []string{directory, filepath.Dir(target), target} {
		if err := checkFile(p, p == target); err != nil {
			return "", fmt.Errorf("fence agent %s: %w", path, err)
		}
	}
	// The path, not its target: fence_idrac is a link to fence_ipmilan, and differs from it because of its name.
	return filepath.Abs(path)
}

// checkFile checks a directory or a program.
func checkFile(path string, program bool) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	owner := -1
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		owner = int(s.Uid)
	}
	switch {
	case program && !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", path)
	case program && info.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("%s is not executable: chmod a+x it", path)
	case foreign(owner, os.Geteuid()):
		return fmt.Errorf("%s is owned by user %d: chown it to root", path, owner)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s can be written by other users: chmod go-w it", path)
	}
	return nil
}

// foreign reports whether a file with this owner is that of another user than root and the one who runs it.
func foreign(owner, user int) bool { return owner != 0 && owner != user }

// Metadata returns the metadata of an agent, as package plan parses it. The agent is given no parameters.
func Metadata(ctx context.Context, directory, name string) ([]byte, error) {
	path, err := Find(directory, name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, metadataTimeout)
	defer cancel()
	r, err := run(ctx, path, []byte("action=metadata\n"), &head{limit: maxMetadata})
	switch {
	case err != nil:
	case r.code != 0:
		err = fmt.Errorf("exit status %d%s", r.code, r.stderr(nil))
	case r.stdout.(*head).cut:
		err = fmt.Errorf("it is longer than %d bytes", maxMetadata)
	default:
		return r.stdout.(*head).text, nil
	}
	return nil, fmt.Errorf("read the metadata of %s: %w", path, err)
}
