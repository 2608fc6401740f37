package image

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// tools are the programs that this package runs, with their Debian packages.
var tools = map[string]string{
	"qemu-system-x86_64": "qemu-system-x86",
	"debootstrap":        "debootstrap",
	"mkfs.ext4":          "e2fsprogs",
	"depmod":             "kmod",
	"xz":                 "xz-utils",
	"apt-get":            "apt",
	"apt-cache":          "apt",
	"dpkg-deb":           "dpkg",
	"chroot":             "coreutils",
}

// toolPath has the directories of programs, some of which an ordinary user's PATH often lacks.
const toolPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// MissingError lists programs that the machine lacks.
type MissingError struct {
	// Tools are their names, Packages the Debian packages to install.
	Tools, Packages []string
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s not found: apt-get install %s", strings.Join(e.Tools, ", "), strings.Join(e.Packages, " "))
}

// CheckTools returns a *MissingError if a program is missing that images and virtual machines need.
func CheckTools() error { return checkTools(toolPath + ":" + os.Getenv("PATH")) }

func checkTools(path string) error {
	var missing MissingError
	for tool, pkg := range tools {
		if find(tool, path) == "" {
			missing.Tools = append(missing.Tools, tool)
			missing.Packages = append(missing.Packages, pkg)
		}
	}
	if len(missing.Tools) == 0 {
		return nil
	}
	slices.Sort(missing.Tools)
	slices.Sort(missing.Packages)
	missing.Packages = slices.Compact(missing.Packages)
	return &missing
}

// find returns the path of a program in a list of directories, "" if none has it.
func find(tool, path string) string {
	for dir := range strings.SplitSeq(path, ":") {
		if dir == "" {
			continue
		}
		if file, err := exec.LookPath(dir + "/" + tool); err == nil {
			return file
		}
	}
	return ""
}

// command returns a command that the kernel kills when this process exits. When ctx ends, its whole process group is
// killed.
func command(ctx context.Context, tool string, args ...string) *exec.Cmd {
	file := find(tool, toolPath+":"+os.Getenv("PATH"))
	if file == "" {
		file = tool // exec returns the error
	}
	cmd := exec.CommandContext(ctx, file, args...)
	cmd.Env = append(os.Environ(), "PATH="+toolPath, "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	return cmd
}

// output runs a command and returns its standard output. The error has the end of its standard error.
func output(cmd *exec.Cmd) (string, error) {
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		tail := bytes.TrimSpace(append(out.Bytes(), said.Bytes()...))
		if len(tail) > 2000 {
			tail = tail[len(tail)-2000:]
		}
		return "", fmt.Errorf("run %s: %w: %s", cmd.Args[0], err, tail)
	}
	return out.String(), nil
}
