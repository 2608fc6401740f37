package pods

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// The log of a runtime that has never answered has no time of a last list.
func TestLogOfFirstFailure(t *testing.T) {
	var b strings.Builder
	s := &fakeRuntime{err: errors.New("connection refused")}
	i := New(Options{Procfs: "/nowhere", Runtime: s, Log: slog.New(slog.NewTextHandler(&b, nil))})
	if err := i.listRuntime(t.Context(), i.runtime); err == nil {
		t.Fatal("list() = nil; want an error")
	}
	if got := b.String(); !strings.Contains(got, "none is known yet") || strings.Contains(got, "0001-01-01") {
		t.Errorf("log of the first failure:\n%s; want no time of a last list", got)
	}
}
