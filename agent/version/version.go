// Package version describes the build of the running program.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// release is set by the linker for a release:
//
//	go build -ldflags '-X github.com/evictd/evictd/agent/version.release=v0.1.0' ./cmd/...
var release string

// Build describes the build of a program.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Of returns the build of the running program.
func Of() Build {
	info, _ := debug.ReadBuildInfo()
	return describe(release, info)
}

// describe returns the build for the version that the linker set. If it set none, the
// version is the module's, which is "(devel)" unless the program was installed with a
// version. info is nil if the program was built without module support.
func describe(linked string, info *debug.BuildInfo) Build {
	b := Build{Version: linked, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info == nil {
		info = &debug.BuildInfo{}
	}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	if b.Version == "" {
		b.Version = "(devel)"
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// String returns the build on one line, without the program's name.
func (b Build) String() string {
	revision := ""
	if b.Revision != "" {
		revision = ", revision " + b.Revision
		if b.Modified {
			revision += " with changes"
		}
	}
	return fmt.Sprintf("%s (%s, %s%s)", b.Version, b.Go, b.Platform, revision)
}
