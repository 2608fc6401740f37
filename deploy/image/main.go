// Command image writes a container image of evictd, evictd-kube, evictd-controller and evictctl as one tar, without a
// container runtime:
//
//	image -o FILE -version VERSION [-revision COMMIT] [-created SECONDS] ARCH=DIR...
//
// DIR has the four programs for linux/ARCH, built without cgo. With several architectures the image has a manifest for
// each. The tar is an OCI image layout (ctr image import, skopeo copy oci-archive:FILE), and has the manifest.json that
// docker load reads. The same programs, version, revision and time give the same bytes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

// tag is what the OCI distribution specification allows as a tag.
var tag = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

func run(args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(stderr)
	out := flags.String("o", "", "write the image to `FILE`")
	var o options
	flags.StringVar(&o.version, "version", "", "the image's tag, and its label org.opencontainers.image.version")
	flags.StringVar(&o.revision, "revision", "", "the commit, for the label org.opencontainers.image.revision")
	created := flags.Int64("created", 0, "the time of the image and of its files, in `SECONDS` since 1970")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: image -o FILE -version VERSION [-revision COMMIT] [-created SECONDS] ARCH=DIR...")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return exitOK
		}
		return exitUsage
	}
	o.created = time.Unix(*created, 0).UTC()
	var err error
	switch o.platforms, err = parsePlatforms(flags.Args()); {
	case err != nil:
	case *out == "":
		err = errors.New("no output: set -o FILE")
	case !tag.MatchString(o.version):
		err = fmt.Errorf("-version %q can't be the tag of an image: use letters, digits, '.', '_' and '-', 128 at most", o.version)
	case *created < 0:
		err = errors.New("-created is before 1970")
	}
	if err != nil {
		fmt.Fprintln(stderr, "image:", err)
		return exitUsage
	}
	if err := write(*out, o); err != nil {
		fmt.Fprintf(stderr, "image: write %s: %v\n", *out, err)
		return exitError
	}
	return exitOK
}

// write writes the image. A signal ends it without a file.
func write(path string, o options) error {
	files, err := build(o)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return writeFile(ctx, path, files, o.created)
}

// parsePlatforms parses arguments of the form ARCH=DIR.
func parsePlatforms(args []string) (platforms []platform, err error) {
	if len(args) == 0 {
		return nil, errors.New("no programs: give ARCH=DIR, for example amd64=.build/linux-amd64")
	}
	for _, arg := range args {
		arch, dir, ok := strings.Cut(arg, "=")
		switch _, known := machines[arch]; {
		case !ok || dir == "":
			return nil, fmt.Errorf("argument %q is not ARCH=DIR", arg)
		case !known:
			return nil, fmt.Errorf("architecture %q in %q is not amd64 or arm64", arch, arg)
		case slices.ContainsFunc(platforms, func(p platform) bool { return p.arch == arch }):
			return nil, fmt.Errorf("architecture %s is given twice", arch)
		}
		platforms = append(platforms, platform{arch, dir})
	}
	return platforms, nil
}
