# CTest tests that run on roxie's RDMA device.
#
#   include(roxie.cmake)                # or, with an installed roxie: find_package(roxie CONFIG REQUIRED)
#   roxie_add_test(NAME hello COMMAND hello --count 3)
#
# COMMAND is a target or a program, with its arguments. The tests are skipped if there is no roxie: CMake
# looks for it in PATH and where this file was installed. OPTIONS are those of `roxie run`,
# such as --egress impair:loss=1%.

find_program(ROXIE_PROGRAM roxie
    PATHS ${CMAKE_CURRENT_LIST_DIR}/../../..
    PATH_SUFFIXES bin)

function(roxie_add_test)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "COMMAND;OPTIONS")
    if(NOT arg_NAME OR NOT arg_COMMAND)
        message(FATAL_ERROR "roxie_add_test needs NAME and COMMAND")
    endif()
    if(NOT ROXIE_PROGRAM)
        add_test(NAME ${arg_NAME} COMMAND ${CMAKE_COMMAND} -E echo "roxie is not installed")
        set_tests_properties(${arg_NAME} PROPERTIES DISABLED TRUE)
        return()
    endif()
    list(POP_FRONT arg_COMMAND program)
    if(TARGET ${program})
        set(program $<TARGET_FILE:${program}>)
    endif()
    add_test(NAME ${arg_NAME} COMMAND ${ROXIE_PROGRAM} run ${arg_OPTIONS} -- ${program} ${arg_COMMAND})
    set_tests_properties(${arg_NAME} PROPERTIES TIMEOUT 60)
endfunction()
