"""A client of the API that knows nothing of it: what there is it learns by reflection.

    client.py SOCKET

Gets and watches the VM behind a control socket, moves a vCPU, drains the slice that it came from, and looks at errors. Prints a
line for each step, and ends with status 1 at the first surprise. Of Debian it needs python3-grpcio and python3-protobuf.
"""

import sys

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELD = descriptor_pb2.FieldDescriptorProto
LIMIT = 60


def message(file, name, *fields):
    """Describes a message: its fields are (name, number, type, repeated)."""
    one = file.message_type.add(name=name)
    for field, number, kind, repeated in fields:
        label = FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL
        if isinstance(kind, str):
            one.field.add(name=field, number=number, label=label, type=FIELD.TYPE_MESSAGE,
                          type_name="." + file.package + "." + kind)
        else:
            one.field.add(name=field, number=number, label=label, type=kind)


def well_known():
    """Reflection and google.rpc.ErrorInfo, as they are published: these a client has to know."""
    pool = descriptor_pool.DescriptorPool()
    text, raw, number = FIELD.TYPE_STRING, FIELD.TYPE_BYTES, FIELD.TYPE_INT32
    file = descriptor_pb2.FileDescriptorProto(
        name="reflection.proto", package="grpc.reflection.v1", syntax="proto3")
    message(file, "ServerReflectionRequest", ("host", 1, text, False),
            ("file_by_filename", 3, text, False), ("file_containing_symbol", 4, text, False),
            ("list_services", 7, text, False))
    message(file, "FileDescriptorResponse", ("file_descriptor_proto", 1, raw, True))
    message(file, "ServiceResponse", ("name", 1, text, False))
    message(file, "ListServiceResponse", ("service", 1, "ServiceResponse", True))
    message(file, "ErrorResponse", ("error_code", 1, number, False), ("error_message", 2, text, False))
    message(file, "ServerReflectionResponse",
            ("file_descriptor_response", 4, "FileDescriptorResponse", False),
            ("list_services_response", 6, "ListServiceResponse", False),
            ("error_response", 7, "ErrorResponse", False))
    pool.Add(file)
    file = descriptor_pb2.FileDescriptorProto(name="info.proto", package="google.rpc", syntax="proto3")
    message(file, "ErrorInfo", ("reason", 1, text, False), ("domain", 2, text, False))
    pool.Add(file)
    return pool


def factory(pool):
    messages = message_factory.MessageFactory(pool)
    return lambda name: messages.GetPrototype(pool.FindMessageTypeByName(name))


KNOWN = factory(well_known())


class Api:
    """What a server offers, learnt by reflection."""

    def __init__(self, channel):
        self.channel, self.pool, self.files = channel, descriptor_pool.DescriptorPool(), set()
        request = KNOWN("grpc.reflection.v1.ServerReflectionRequest")
        answer = KNOWN("grpc.reflection.v1.ServerReflectionResponse")
        method = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        ask = channel.stream_stream(method, request.SerializeToString, answer.FromString)
        self.reflect = lambda **what: next(iter(ask(iter([request(**what)]), timeout=LIMIT)))
        listed = self.reflect(list_services="*").list_services_response.service
        self.services = sorted(service.name for service in listed)
        for service in self.services:
            self.learn(file_containing_symbol=service)
        self.type = factory(self.pool)

    def learn(self, **what):
        answer = self.reflect(**what)
        if answer.HasField("error_response"):
            raise LookupError(f"{what}: {answer.error_response.error_message}")
        for raw in answer.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(raw)
            if file.name in self.files:
                continue
            self.files.add(file.name)
            for needed in file.dependency:
                if needed not in self.files:
                    self.learn(file_by_filename=needed)
            self.pool.Add(file)

    def method(self, service, name):
        method = self.pool.FindServiceByName(service).FindMethodByName(name)
        request = self.type(method.input_type.full_name)
        answer = self.type(method.output_type.full_name)
        kind = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        call = kind(f"/{service}/{name}", request.SerializeToString, answer.FromString)
        return lambda **fields: call(request(**fields), timeout=LIMIT)

    def vm(self, call, /, **fields):
        return self.method("tessera.control.v1.VmService", call)(**fields)

    def operation(self, call, /, **fields):
        return self.method("google.longrunning.Operations", call)(**fields)

    def unpack(self, packed):
        return self.type(packed.type_url.rsplit("/", 1)[1]).FromString(packed.value)

    def finish(self, operation):
        """Waits for the end of an operation; its response."""
        while not operation.done:
            operation = self.operation("WaitOperation", name=operation.name)
        if operation.HasField("error"):
            raise RuntimeError(operation.error.message)
        progress = self.unpack(operation.metadata)
        assert progress.HasField("end_time") and progress.method, progress
        return self.unpack(operation.response)

    def refusal(self, call):
        """Code and reason of a call that must fail."""
        try:
            call()
        except grpc.RpcError as error:
            details = dict(error.trailing_metadata())["grpc-status-details-bin"]
            first = self.type("google.rpc.Status").FromString(details).details[0]
            assert first.type_url.endswith("google.rpc.ErrorInfo"), first
            info = KNOWN("google.rpc.ErrorInfo").FromString(first.value)
            assert info.domain == "tessera", info
            return error.code(), info.reason
        raise AssertionError("it is not refused")


def where(vm):
    """The slice of each vCPU."""
    return {vcpu: one.number for one in vm.slices for vcpu in one.vcpus}


def say(*words):
    print(*words, flush=True)


def main(path):
    api = Api(grpc.insecure_channel("unix:" + path))
    say("services", *api.services)
    vm = api.vm("GetVm")
    assert vm.name.startswith("vms/") and len(vm.slices) == 2, vm
    say("got", vm.name.split("/")[0], "epoch", vm.placement_epoch)
    watch = api.vm("WatchVm", name=vm.name)
    first = next(watch)
    assert first.WhichOneof("kind") == "snapshot", first
    stale = api.refusal(lambda: api.vm("Spread", etag="0.0.0.0"))
    assert stale == (grpc.StatusCode.ABORTED, "ETAG_MISMATCH"), stale
    away = min(vcpu for vcpu, at in where(vm).items() if at == 0)
    fields = {"name": vm.name, "etag": vm.etag, "moves": [{"vcpu": away, "slice": 1}],
              "request_id": "123e4567-e89b-42d3-a456-426614174000"}
    begun = api.vm("MoveVcpus", **fields)
    assert api.vm("MoveVcpus", **fields).name == begun.name
    moved = api.finish(begun)
    assert moved.HasField("took"), moved
    for seen in watch:
        if seen.WhichOneof("kind") == "change" and where(seen.change)[away] == 1:
            break
    watch.cancel()
    say("moved", away)
    plan = api.finish(api.vm("DrainSlice", name="slices/1", validate_only=True))
    assert plan.steps and where(api.vm("GetVm"))[away] == 1, plan
    api.finish(api.vm("DrainSlice", name=vm.name + "/slices/1"))
    vm = api.vm("GetVm")
    assert all(at == 0 for at in where(vm).values()), vm
    again = api.vm("DrainSlice", name="slices/9", stay=True)
    while not again.done:
        again = api.operation("WaitOperation", name=again.name)
    assert again.HasField("error"), again
    say("drained, and then refused:", again.error.message)
    listed = api.operation("ListOperations").operations
    assert [one.name for one in listed][0] == again.name, listed
    api.operation("DeleteOperation", name=again.name)
    gone = api.refusal(lambda: api.operation("GetOperation", name=again.name))
    assert gone == (grpc.StatusCode.NOT_FOUND, "OPERATION_NOT_FOUND"), gone
    say("done")


if __name__ == "__main__":
    main(sys.argv[1])
