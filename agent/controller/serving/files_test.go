package serving

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// writePair writes the files of a certificate.
func writePair(t *testing.T, dir string, m *material) {
	t.Helper()
	data, err := m.data()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{keyServing, keyServingKey} {
		if err := os.WriteFile(filepath.Join(dir, name), data[name], 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// checkLogged fails the test unless a text was logged once since the last call.
func checkLogged(t *testing.T, step string, log *bytes.Buffer, text string) {
	t.Helper()
	if strings.Count(log.String(), text) != 1 {
		t.Errorf("%s: log:\n%s\nwant once %q", step, log, text)
	}
	log.Reset()
}

// TestFiles: a certificate in files is taken over when it changes. Files that can't be used are reported once, and the
// last certificate stays in use.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := &Certificate{}
		f := &Files{Directory: dir, Certificate: c, Metrics: NewMetrics(c), Log: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- f.Start(ctx) }()
		check := func(step string, want *material, problem float64, logged string) {
			t.Helper()
			time.Sleep(3 * filesInterval)
			synctest.Wait()
			got, err := c.Get(nil)
			switch {
			case want == nil:
				if err == nil {
					t.Errorf("%s: there is a certificate", step)
				}
			case err != nil || !got.Leaf.Equal(want.serving.Leaf):
				t.Errorf("%s: another certificate than that of the files, or %v", step, err)
			}
			if got := samples(t, f.Metrics)["certificate_problem"]; got != problem {
				t.Errorf("%s: problem %v; want %v", step, got, problem)
			}
			checkLogged(t, step, &log, logged)
		}
		check("no files", nil, 1, "no such file or directory")
		one, _ := renew(t, nil, begin)
		writePair(t, dir, one)
		check("files", one, 0, "serving certificate read")
		two, _ := renew(t, nil, begin)
		writePair(t, dir, two)
		check("other files", two, 0, "serving certificate read")
		if err := os.WriteFile(filepath.Join(dir, keyServing), encode("CERTIFICATE", one.serving.Leaf.Raw), 0o600); err != nil {
			t.Fatal(err)
		}
		check("another certificate with the same key", two, 1, "private key does not match public key")
		if err := os.WriteFile(filepath.Join(dir, keyServing), make([]byte, maxPEM+1), 0o600); err != nil {
			t.Fatal(err)
		}
		check("a large file", two, 1, "is not a regular file of at most 65536 bytes")
		if err := os.Remove(filepath.Join(dir, keyServingKey)); err != nil {
			t.Fatal(err)
		}
		writePair(t, dir, one)
		check("the first files again", one, 0, "serving certificate read")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
