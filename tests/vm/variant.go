package main

import (
	"slices"

	"github.com/evictd/evictd/tests/vm/protocol"
)

// variant is a machine that tests run on: a kernel and its settings.
type variant struct {
	name   string
	kernel string
	driver string
	// append are kernel arguments; writes and hide are fields of the plan.
	append []string
	writes []protocol.Write
	hide   []string
	// cgroupV1, noPSI and noBTF are properties that result from these settings.
	cgroupV1, noPSI, noBTF bool
	// suites and classes are those of the profile that run on the machine; nil is all. classes does not apply to suites
	// without classes.
	suites, classes []string
}

// has reports whether the machine runs a suite.
func (v variant) has(s suite) bool { return v.suites == nil || slices.Contains(v.suites, s.name) }

// env returns the environment that describes the machine to the tests.
func (v variant) env() []string {
	word := func(no bool, yes, otherwise string) string {
		if no {
			return otherwise
		}
		return yes
	}
	return []string{
		"EVICTD_TEST_VM=1",
		"EVICTD_TEST_PROGRAMS=" + programsDir,
		"EVICTD_TEST_CLUSTER=" + clusterDir,
		"EVICTD_TEST_DEPLOY=" + deployDir,
		"EVICTD_TEST_CGROUP_DRIVER=" + v.driver,
		"VM_CGROUP=" + word(v.cgroupV1, "v2", "v1"),
		"VM_PSI=" + word(v.noPSI, "1", "0"),
		"VM_BTF=" + word(v.noBTF, "yes", "no"),
	}
}

// hasClass reports whether the machine runs a class.
func (v variant) hasClass(c class) bool {
	return v.classes == nil || slices.Contains(v.classes, c.name)
}

// plain returns the machines without special settings, one for each kernel.
func plain(kernels []string, driver string) []variant {
	var all []variant
	for _, k := range kernels {
		all = append(all, variant{name: k + "-" + driver, kernel: k, driver: driver})
	}
	return all
}

// special is a machine of the matrix with special settings, without kernel and driver.
type special struct {
	variant
	// kernels are those that support it; nil is all. why explains the others.
	kernels []string
	why     string
}

// specials are the special machines of the matrix.
var specials = []special{
	{
		variant: variant{name: "v1", append: []string{"systemd.unified_cgroup_hierarchy=0"}, cgroupV1: true},
		kernels: []string{"6.1"}, why: "Debian's 6.12 is built without CONFIG_MEMCG_V1",
	},
	{variant: variant{name: "nopsi", append: []string{"psi=0"}, noPSI: true}},
	{variant: variant{name: "nobtf", hide: []string{"/sys/kernel/btf"}, noBTF: true}},
	{variant: variant{name: "lockdown", append: []string{"lockdown=confidentiality"}}},
	{variant: variant{name: "hugetlb", append: []string{"hugepages=128"}}},
	{variant: variant{name: "mglru", writes: []protocol.Write{{File: "/sys/kernel/mm/lru_gen/enabled", Text: "y"}}}, kernels: []string{"6.1"}, why: "6.12 has it on"},
	{variant: variant{name: "nomglru", writes: []protocol.Write{{File: "/sys/kernel/mm/lru_gen/enabled", Text: "n"}}}, kernels: []string{"6.12"}, why: "6.1 has it off"},
}

// specialSuites and specialClasses run on the special machines. They test what depends on the kernel: reading memory
// and detecting crossings. The plain machines test the rest.
var (
	specialSuites  = []string{"boot", "native", "kernel"}
	specialClasses = []string{"each-class", "soft-eviction", "growth", "lanes"}
)

// driverSuites and driverClasses run on the machines with the cgroupfs driver. Other suites have no pods or create their
// own cgroups. The classes have one test of each subject, and all tests of cgroups.
var (
	driverSuites  = []string{"boot", "native", "service"}
	driverClasses = []string{
		"each-class", "soft-eviction", "victims", "memory", "lanes", "soft", "restart", "spare", "runtime", "daemon", "more-spare", "life",
	}
)

// matrix returns the machines of the full profile: plain machines with both drivers, and each special one with each
// kernel that supports it.
func matrix(kernels []string) []variant {
	all := plain(kernels, "systemd")
	for _, v := range plain(kernels, "cgroupfs") {
		v.suites, v.classes = driverSuites, driverClasses
		all = append(all, v)
	}
	for _, k := range kernels {
		for _, s := range specials {
			if s.kernels != nil && !slices.Contains(s.kernels, k) {
				continue
			}
			v := s.variant
			v.suites, v.classes = specialSuites, specialClasses
			v.kernel, v.driver, v.name = k, "systemd", k+"-systemd-"+s.name
			if v.cgroupV1 {
				v.driver, v.name = "cgroupfs", k+"-cgroupfs-"+s.name
			}
			all = append(all, v)
		}
	}
	return all
}
