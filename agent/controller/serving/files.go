package serving

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// filesInterval is how often the files are read.
const filesInterval = 10 * time.Second

// Files reads the certificate from the files tls.crt and tls.key of a directory, such as a mounted Secret, and reads
// them again when they change. It writes nothing.
type Files struct {
	Directory   string
	Certificate *Certificate
	Metrics     *Metrics
	Log         *slog.Logger

	certificate, key []byte
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Files) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable. The certificate that is in use stays if the files can't be read.
func (f *Files) Start(ctx context.Context) error {
	watchFiles(ctx, f.read, f.Metrics.setProblem, func(err error) {
		f.Log.Error("could not read the serving certificate; the last one stays in use", "error", err)
	})
	return nil
}

// watchFiles reads files at once and every filesInterval until ctx ends. A problem is logged once, and measured while it
// lasts.
func watchFiles(ctx context.Context, read func() error, measure func(problem bool), log func(error)) {
	last := ""
	for {
		err := read()
		switch {
		case err == nil:
			last = ""
		case err.Error() != last:
			last = err.Error()
			log(err)
		}
		measure(err != nil)
		select {
		case <-ctx.Done():
			return
		case <-time.After(filesInterval):
		}
	}
}

// read takes the certificate over if the files have changed.
func (f *Files) read() error {
	path := filepath.Join(f.Directory, keyServing)
	certificate, err := readBounded(path)
	if err != nil {
		return err
	}
	key, err := readBounded(filepath.Join(f.Directory, keyServingKey))
	if err != nil {
		return err
	}
	// The kubelet replaces all files of a Secret at once. A certificate that changed in between belongs to another key.
	again, err := readBounded(path)
	if err != nil {
		return err
	}
	if !bytes.Equal(certificate, again) || bytes.Equal(certificate, f.certificate) && bytes.Equal(key, f.key) {
		return nil
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return fmt.Errorf("%s and %s in %s: %w", keyServing, keyServingKey, f.Directory, err)
	}
	f.certificate, f.key = certificate, key
	f.Certificate.set(&pair)
	f.Log.Info("serving certificate read", "directory", f.Directory, "names", pair.Leaf.DNSNames, "not_after", pair.Leaf.NotAfter)
	return nil
}

func readBounded(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxPEM {
		return nil, fmt.Errorf("%s is not a regular file of at most %d bytes", path, maxPEM)
	}
	return os.ReadFile(path)
}
