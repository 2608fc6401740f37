package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

// QEMU is the emulator that boots the machines.
type QEMU struct {
	// Program is its path, or a name in PATH.
	Program string
	// Args are its first arguments, with the directories of its firmware.
	Args []string
}

// minMajor and minMinor are the version of the first QEMU that emulates patched instructions correctly. An older
// one may execute the translation of an int3 after another processor has removed the int3, and the kernel panics
// ("Oops: int3"). QEMU 8.1 locks pages before translation (accel/tcg, deba78709ae8). Linux patches instructions during
// the boot and whenever tracing is switched on or off: in 6.12 __schedule and try_to_wake_up, which are always running
// on the other processor.
const minMajor, minMinor = 8, 1

// newQEMU is the archive suite with a newer QEMU than the 7.2 of Debian 12.
var newQEMU = struct {
	Suite    string
	Packages []string
}{suite + "-backports", []string{"qemu-system-x86", "qemu-system-data"}}

// QEMU returns the installed emulator or, if that is too old, one in the cache, which the first call downloads (13 MB).
// That one uses the libraries of the installed one.
func (c *Cache) QEMU(ctx context.Context) (QEMU, error) {
	const installed = "qemu-system-x86_64"
	said, err := output(command(ctx, installed, "--version"))
	if err != nil {
		return QEMU{}, err
	}
	if isRecentQEMU(said) {
		return QEMU{Program: installed}, nil
	}
	dir, err := c.entry(ctx, "qemu-"+hash(newQEMU), "a newer QEMU", func(ctx context.Context, dir string) error {
		source, err := FindSource("/etc/apt")
		if err != nil {
			return err
		}
		return buildQEMU(ctx, source, dir)
	})
	if err != nil {
		return QEMU{}, err
	}
	return unpackedQEMU(dir), nil
}

// unpackedQEMU returns the QEMU in dir. The PC firmware is in a separate package, on which the installed QEMU depends.
func unpackedQEMU(dir string) QEMU {
	return QEMU{
		Program: filepath.Join(dir, "usr/bin/qemu-system-x86_64"),
		Args:    []string{"-L", filepath.Join(dir, "usr/share/qemu"), "-L", "/usr/share/seabios"},
	}
}

// buildQEMU unpacks the packages in dir.
func buildQEMU(ctx context.Context, source Source, dir string) error {
	work := filepath.Join(dir, "work")
	a, err := openAptArchive(ctx, source, []string{newQEMU.Suite}, work)
	if err != nil {
		return err
	}
	for _, pkg := range newQEMU.Packages {
		deb, err := a.download(ctx, pkg)
		if err != nil {
			return err
		}
		if _, err := output(command(ctx, "dpkg-deb", "-x", deb, dir)); err != nil {
			return err
		}
	}
	said, err := output(command(ctx, unpackedQEMU(dir).Program, "--version"))
	if err != nil {
		return err
	}
	if !isRecentQEMU(said) {
		return fmt.Errorf("%s has no QEMU %d.%d or newer: %s", newQEMU.Suite, minMajor, minMinor, said)
	}
	return os.RemoveAll(work)
}

// versionLine matches the first line of qemu --version:
//
//	QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)
var versionLine = regexp.MustCompile(`^QEMU emulator version (\d+)\.(\d+)`)

// isRecentQEMU reports whether a QEMU is new enough, by its output of --version.
func isRecentQEMU(said string) bool {
	match := versionLine.FindStringSubmatch(said)
	if match == nil {
		return false
	}
	major, err := strconv.Atoi(match[1])
	minor, errMinor := strconv.Atoi(match[2])
	return err == nil && errMinor == nil && (major > minMajor || major == minMajor && minor >= minMinor)
}
