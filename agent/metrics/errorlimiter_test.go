package metrics

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestRequestErrorsAreRateLimited checks that requests cause one log line per minute
// while the web configuration is invalid.
func TestRequestErrorsAreRateLimited(t *testing.T) {
	config := filepath.Join(t.TempDir(), "web.yml")
	write := func(text string) {
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("{}")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	o := options(http.NotFoundHandler(), config)
	o.Log = slog.New(slog.NewTextHandler(&logged, nil))
	t.Run("requests", func(t *testing.T) {
		serveOn(t, l, o)
		const requests = 20
		for n := range requests {
			response, err := http.Get("http://" + l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, response.Body)
			response.Body.Close()
			if want := map[bool]int{true: 404, false: 500}[n == 0]; response.StatusCode != want {
				t.Errorf("request %d = %d; want %d", n, response.StatusCode, want)
			}
			write("{")
		}
	})
	if n := strings.Count(logged.String(), "level=ERROR"); n != 1 {
		t.Errorf("%d errors were logged; want 1:\n%s", n, &logged)
	}
}

func TestErrorLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		log := slog.New(&errorLimiter{Handler: slog.NewTextHandler(&logged, nil)})
		for _, pause := range []time.Duration{0, 0, errorLogInterval - 1, 1} {
			time.Sleep(pause)
			log.Error("broken")
			log.Info("other")
		}
		if e, i := strings.Count(logged.String(), "broken"), strings.Count(logged.String(), "other"); e != 2 || i != 4 {
			t.Errorf("%d errors and %d others were logged; want 2 and 4", e, i)
		}
	})
}
