package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// series is a kernel series that machines can boot.
type series struct {
	Name string
	// Suites are the archive suites of its packages, Package matches their names.
	Suites  []string
	Package string
}

// kernels are Debian's cloud kernels: small, with virtio, BTF and the controllers of both cgroup versions (the memory
// controller of v1 only in 6.1: 6.12 is built without CONFIG_MEMCG_V1).
var kernels = []series{
	{Name: "6.1", Suites: []string{suite, suite + "-backports"}, Package: `^linux-image-6\.1\.0-(\d+)-cloud-amd64$`},
	{Name: "6.12", Suites: []string{suite, suite + "-backports"}, Package: `^linux-image-6\.12\.(\d+)\+deb12-cloud-amd64$`},
}

// bootModules are the modules for the disks and the event port, without their dependencies.
var bootModules = []string{"virtio_pci", "virtio_blk", "virtio_console"}

// Kernel is a kernel in the cache.
type Kernel struct {
	// Series is for example 6.1, Release is that of uname -r.
	Series, Release string
	dir             string
}

// Image returns the file that QEMU boots.
func (k Kernel) Image() string { return filepath.Join(k.dir, "vmlinuz") }

// Modules returns a disk image with the content of /lib/modules/RELEASE.
func (k Kernel) Modules() string { return filepath.Join(k.dir, "modules.img") }

// Series lists the kernel series, oldest first.
func Series() []string {
	var names []string
	for _, s := range kernels {
		names = append(names, s.Name)
	}
	return names
}

// ErrNoKernel means that a series is not one of Series, or that the archive does not have it.
var ErrNoKernel = errors.New("no such kernel")

// Kernel returns the kernel of a series, which the first call downloads (30 MB).
func (c *Cache) Kernel(ctx context.Context, name string) (Kernel, error) {
	i := slices.IndexFunc(kernels, func(s series) bool { return s.Name == name })
	if i < 0 {
		return Kernel{}, fmt.Errorf("find kernel %s: %w: there are %s", name, ErrNoKernel, strings.Join(Series(), ", "))
	}
	s := kernels[i]
	key := hash([]any{s, bootModules})
	dir, err := c.entry(ctx, "kernel-"+name+"-"+key, "kernel "+name, func(ctx context.Context, dir string) error {
		source, err := FindSource("/etc/apt")
		if err != nil {
			return err
		}
		return s.build(ctx, source, dir)
	})
	if err != nil {
		return Kernel{}, err
	}
	release, err := os.ReadFile(filepath.Join(dir, "release"))
	if err != nil {
		return Kernel{}, fmt.Errorf("find kernel %s: %w", name, err)
	}
	return Kernel{Series: name, Release: strings.TrimSpace(string(release)), dir: dir}, nil
}

// build creates release, vmlinuz, modules.img and boot in dir.
func (s series) build(ctx context.Context, source Source, dir string) error {
	work := filepath.Join(dir, "work")
	deb, err := s.download(ctx, source, work)
	if err != nil {
		return err
	}
	unpacked := filepath.Join(work, "unpacked")
	if _, err := output(command(ctx, "dpkg-deb", "-x", deb, unpacked)); err != nil {
		return err
	}
	images, err := filepath.Glob(filepath.Join(unpacked, "boot/vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return fmt.Errorf("unpack kernel: found %d kernels in %s", len(images), filepath.Base(deb))
	}
	if err := os.Rename(images[0], filepath.Join(dir, "vmlinuz")); err != nil {
		return err
	}
	release := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	if _, err := output(command(ctx, "depmod", "-b", unpacked, release)); err != nil {
		return err
	}
	modules := filepath.Join(unpacked, "lib/modules", release)
	if err := copyBootModules(ctx, modules, filepath.Join(dir, "boot")); err != nil {
		return err
	}
	if err := MakeDisk(ctx, modules, filepath.Join(dir, "modules.img")); err != nil {
		return err
	}
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "release"), []byte(release+"\n"), 0o644)
}

// download gets the newest package of the series.
func (s series) download(ctx context.Context, source Source, work string) (deb string, err error) {
	a, err := openAptArchive(ctx, source, s.Suites, work)
	if err != nil {
		return "", err
	}
	names, err := a.apt(ctx, "apt-cache", "pkgnames", "linux-image-"+s.Name)
	if err != nil {
		return "", err
	}
	name := newest(strings.Fields(names), regexp.MustCompile(s.Package))
	if name == "" {
		return "", fmt.Errorf("find kernel %s: %w in %s of the archive", s.Name, ErrNoKernel, strings.Join(s.Suites, " and "))
	}
	return a.download(ctx, name)
}

// newest returns the name with the largest number in the pattern's group, "" if none matches.
func newest(names []string, pattern *regexp.Regexp) string {
	best, most := "", -1
	for _, name := range names {
		if match := pattern.FindStringSubmatch(name); match != nil {
			if n, err := strconv.Atoi(match[1]); err == nil && n > most {
				best, most = name, n
			}
		}
	}
	return best
}
