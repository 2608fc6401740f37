package image

import (
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
)

func TestNewest(t *testing.T) {
	names := []string{
		"linux-image-6.1.0-9-cloud-amd64", "linux-image-6.1.0-50-cloud-amd64", "linux-image-6.1.0-48-cloud-amd64",
		"linux-image-6.1.0-51-cloud-amd64-unsigned", "linux-image-6.1.0-50-amd64", "linux-image-6.12.9+deb12-cloud-amd64",
		"linux-image-6.12.95+deb12-cloud-amd64", "linux-image-6.12.96+bpo-cloud-amd64",
	}
	for series, want := range map[string]string{
		"6.1":  "linux-image-6.1.0-50-cloud-amd64",
		"6.12": "linux-image-6.12.95+deb12-cloud-amd64",
	} {
		for _, s := range kernels {
			if s.Name != series {
				continue
			}
			if got := newest(names, regexp.MustCompile(s.Package)); got != want {
				t.Errorf("newest of %s = %q; want %q", series, got, want)
			}
			if got := newest(nil, regexp.MustCompile(s.Package)); got != "" {
				t.Errorf("newest of no names = %q; want none", got)
			}
		}
	}
}

func TestUnknownKernel(t *testing.T) {
	c, err := OpenCache(t.TempDir(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kernel(t.Context(), "5.4"); !errors.Is(err, ErrNoKernel) || !strings.Contains(err.Error(), "6.1, 6.12") {
		t.Errorf("Kernel(5.4) = %v; want ErrNoKernel and the known kernels", err)
	}
}

func TestSourceLine(t *testing.T) {
	s := Source{URI: "http://a/debian", Suites: []string{"bookworm"}, SignedBy: "/k.gpg"}
	if got, want := s.line("bookworm-backports"), "deb [signed-by=/k.gpg] http://a/debian bookworm-backports main\n"; got != want {
		t.Errorf("line = %q; want %q", got, want)
	}
}
