package cluster

import (
	"errors"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// outcome is what the answer to a write or read of a pod means for an order.
type outcome int

const (
	// succeeded: the API server has done it.
	succeeded outcome = iota
	// podGone: the pod is not in the API, or its name has another UID.
	podGone
	// conflict: another client has changed the pod, or a deletion's precondition failed.
	conflict
	// tooLarge: the pod's own annotations or its size leave no room for the write.
	tooLarge
	// refused: the API server refuses for good.
	refused
	// forbidden: this user may not do it (403, not by a policy). An API server that has just
	// started says so for some seconds, until it has read its roles.
	forbidden
	// later: the request may succeed later. Any error that is not an answer of the API server
	// itself, but of a proxy or of the network, is one of these.
	later
)

// outcomeOf returns what an error of a request about a pod means.
func outcomeOf(err error) outcome {
	if err == nil {
		return succeeded
	}
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) || unstructured(answer.Status()) {
		return later
	}
	status := answer.Status()
	switch {
	case tooLargeForStorage(&status):
		return tooLarge
	case status.Code == http.StatusTooManyRequests, status.Code >= http.StatusInternalServerError:
		return later
	case denied(&status):
		return refused
	}
	switch status.Code {
	case http.StatusNotFound:
		return podGone
	case http.StatusConflict:
		return conflict
	case http.StatusUnprocessableEntity:
		return invalid(&status)
	case http.StatusUnauthorized, http.StatusRequestTimeout:
		return later
	case http.StatusRequestEntityTooLarge:
		return tooLarge
	case http.StatusForbidden:
		return forbidden
	}
	return refused
}

// unstructured reports whether an answer was not a Status of the API server.
func unstructured(status metav1.Status) bool {
	if status.Details == nil {
		return false
	}
	for _, c := range status.Details.Causes {
		if c.Type == metav1.CauseTypeUnexpectedServerResponse {
			return true
		}
	}
	return false
}

// denied reports whether an admission policy or a webhook has refused a request. A policy
// answers 422 by default and may answer 403 or 413 instead
// (apiserver/pkg/admission/plugin/policy/validating); a webhook chooses any code.
func denied(status *metav1.Status) bool {
	return strings.Contains(status.Message, "ValidatingAdmissionPolicy '") ||
		strings.Contains(status.Message, "admission webhook ") && strings.Contains(status.Message, " denied the request")
}

// invalid returns the outcome of a request that the API server's own validation has refused.
// It names the field of each cause.
func invalid(status *metav1.Status) outcome {
	if status.Details == nil {
		return refused
	}
	for _, c := range status.Details.Causes {
		switch {
		case c.Field == "metadata.uid":
			return podGone
		case c.Field == "metadata.annotations" && c.Type == metav1.CauseType(field.ErrorTypeTooLong):
			return tooLarge
		}
	}
	return refused
}

// tooLargeForStorage reports whether etcd has refused the object for its size
// (apiserver/pkg/endpoints/handlers/rest.go, isTooLargeError). The API server answers 500.
func tooLargeForStorage(status *metav1.Status) bool {
	return strings.Contains(status.Message, "etcdserver: request is too large") ||
		strings.Contains(status.Message, "trying to send message larger than max")
}

// retryAfter returns how long the API server asks to wait.
func retryAfter(err error) time.Duration {
	seconds, ok := apierrors.SuggestsClientDelay(err)
	if !ok {
		return 0
	}
	return time.Duration(seconds) * time.Second
}
